// A mask as the kernels read it: made once for each mask set, and uploaded.
//
// Pure. One uint32 for each 32 elements and one for each 1,024.
#ifndef PACTRAIN_KERNELS_CUDA_MASK_IMAGE_H_
#define PACTRAIN_KERNELS_CUDA_MASK_IMAGE_H_

#include <cstdint>
#include <vector>

#include "kernels/mask_plan.h"

namespace pactrain::cuda {

// The words of the bitmap, then the offsets of its tiles (shapes.h).
// REQUIRES: plan.elements() <= kMaxElements.
std::vector<uint32_t> MaskImage(const kernels::MaskPlan& plan);

// Where in the image of so many elements the offsets begin, in bytes; and all
// of its bytes.
uint64_t MaskOffsetsAt(uint32_t elements);
uint64_t MaskImageBytes(uint32_t elements);

}  // namespace pactrain::cuda

#endif  // PACTRAIN_KERNELS_CUDA_MASK_IMAGE_H_
