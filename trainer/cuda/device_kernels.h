// The kernels of kernels/cuda on one GPU: compact, and expand + divide.
//
// A launch is enqueued on the caller's stream and waits for nothing: the caller
// keeps all memory valid and unchanged until the stream is past it. Results
// have the bits of kernels/compact.h, expand.h and bf16.h.
//
// Belongs to the context in which it was loaded, which must be current at every
// call and at destruction. Thread-safe.
#ifndef PACTRAIN_TRAINER_CUDA_DEVICE_KERNELS_H_
#define PACTRAIN_TRAINER_CUDA_DEVICE_KERNELS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "kernels/cuda/code.h"
#include "trainer/cuda/driver.h"

namespace pactrain::trainer::cuda {

// An address on the device (CUdeviceptr), and a CUstream.
using DevicePointer = uint64_t;
using Stream = void*;

enum class ElementType { kFloat32, kBfloat16 };

// A bucket's mask on the device: what kernels/cuda/mask_image.h made for so
// many elements, copied as it is. 0: all elements are kept.
struct DeviceMask {
  DevicePointer image = 0;
  uint32_t elements = 0;
};

class DeviceKernels {
 public:
  // For the device of this thread's current context (torch's).
  //   NotBuilt, DriverTooOld, NoDevice (no context), NoCode, DriverError.
  static std::variant<std::unique_ptr<DeviceKernels>, CudaError> Load(
      std::shared_ptr<const Driver> driver,
      const pactrain::cuda::DeviceCode& code = pactrain::cuda::EmbeddedCode());

  ~DeviceKernels();
  DeviceKernels(const DeviceKernels&) = delete;
  DeviceKernels& operator=(const DeviceKernels&) = delete;

  // `out` gets the kept elements in fp32; `totals` a
  // pactrain::cuda::BlockTotals for each block of elements (BlocksOf()).
  // Without `count_outside` only what is kept is read. Addresses need the
  // alignment of their type.
  //   InvalidArgument: too many elements. DriverError.
  std::optional<CudaError> Compact(const DeviceMask& mask, ElementType type,
                                   DevicePointer in, bool count_outside,
                                   DevicePointer out, DevicePointer totals,
                                   Stream stream) const;

  // `in` has the kept elements in fp32. `out` gets them divided by
  // `world_size`, and +0 outside the mask.
  //   InvalidArgument: too many elements, world_size 0. DriverError.
  std::optional<CudaError> ExpandDivide(const DeviceMask& mask,
                                        ElementType type, DevicePointer in,
                                        uint32_t world_size, DevicePointer out,
                                        Stream stream) const;

 private:
  struct Functions {
    void* compact_fp32 = nullptr;
    void* compact_bf16 = nullptr;
    void* expand_divide_fp32 = nullptr;
    void* expand_divide_bf16 = nullptr;
  };

  explicit DeviceKernels(std::shared_ptr<const Driver> driver)
      : driver_(std::move(driver)) {}
  std::optional<CudaError> Launch(void* function, uint32_t elements,
                                  Stream stream, void** parameters) const;

  const std::shared_ptr<const Driver> driver_;
  void* module_ = nullptr;
  Functions functions_;
};

// Whether the code has something for a GPU of this compute capability (90: 9.0)
// under a driver that can do this CUDA.
//   NotBuilt, DriverTooOld, NoCode.
std::optional<CudaError> CheckCode(const pactrain::cuda::DeviceCode& code,
                                   int driver_version, int capability);

// What the kernels can do on the GPU of this thread's current context, or where
// it has none on all of this machine's, without touching one: makes no context.
// In words, one line; or why not, of the first GPU that they cannot use.
std::variant<std::string, CudaError> Describe(
    const char* library = "libcuda.so.1",
    const pactrain::cuda::DeviceCode& code = pactrain::cuda::EmbeddedCode());

}  // namespace pactrain::trainer::cuda

#endif  // PACTRAIN_TRAINER_CUDA_DEVICE_KERNELS_H_
