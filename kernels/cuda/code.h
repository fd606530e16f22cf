// The kernels as nvcc compiled them, within this program.
#ifndef PACTRAIN_KERNELS_CUDA_CODE_H_
#define PACTRAIN_KERNELS_CUDA_CODE_H_

#include <span>

namespace pactrain::cuda {

struct DeviceCode {
  // For the driver; empty where this was built without nvcc.
  std::span<const unsigned char> fatbin;
  // Of the compiler, as drivers count: 13000 is 13.0.
  int cuda_version = 0;
  // Compute capabilities that it has machine code for: 80 is 8.0.
  std::span<const int> architectures;
  // Newer ones than this get theirs from the driver, by PTX; 0: none do.
  int ptx = 0;
};

DeviceCode EmbeddedCode();

}  // namespace pactrain::cuda

#endif  // PACTRAIN_KERNELS_CUDA_CODE_H_
