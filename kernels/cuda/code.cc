#include "kernels/cuda/code.h"

#include "kernels/cuda/kernels_code.h"

namespace pactrain::cuda {

DeviceCode EmbeddedCode() {
#ifdef PACTRAIN_CUDA_VERSION
  static constexpr int kArchitectures[] = {PACTRAIN_CUDA_ARCHITECTURES};
  return {kKernelsCode, PACTRAIN_CUDA_VERSION, kArchitectures,
          PACTRAIN_CUDA_PTX};
#else
  return {};
#endif
}

}  // namespace pactrain::cuda
