// NVIDIA's driver API, loaded when it is first asked for: nothing of it is
// linked, and nothing happens at import.
//
// Holds the library open for the life of the object; the driver itself stays in
// the process. Thread-safe once loaded, as the driver is.
#ifndef PACTRAIN_TRAINER_CUDA_DRIVER_H_
#define PACTRAIN_TRAINER_CUDA_DRIVER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <variant>

namespace pactrain::trainer::cuda {

// Why kernels cannot be had, or did not run.
enum class Reason {
  kNotBuilt = 1,      // This library was built without nvcc.
  kNoDriver = 2,      // No libcuda.so.1, or it does not start.
  kDriverTooOld = 3,  // For the release that compiled the kernels.
  kNoDevice = 4,      // No GPU is seen, or the thread has no context of one.
  kNoCode = 5,        // For the GPU's architecture.
  kInvalidArgument = 6,
  kDriverError = 7,  // A call failed: maybe of an earlier one that is now told.
};

struct CudaError {
  Reason reason;
  std::string text;  // One line.
};

// Of cuda.h.
inline constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;
inline constexpr int kErrorNoDevice = 100, kErrorNoBinary = 209;
inline constexpr int kErrorNotReady = 600;

// The driver's functions by their names, as cuda.h has them.
struct DriverCalls {
  int (*cuInit)(unsigned flags);
  int (*cuDriverGetVersion)(int* version);
  int (*cuDeviceGetCount)(int* count);
  int (*cuDeviceGet)(int* device, int ordinal);
  int (*cuDeviceGetName)(char* name, int bytes, int device);
  int (*cuDeviceGetAttribute)(int* value, int attribute, int device);
  int (*cuDeviceGetUuid_v2)(unsigned char* uuid, int device);  // 16 bytes.
  int (*cuCtxGetDevice)(int* device);
  int (*cuCtxGetCurrent)(void** context);
  int (*cuCtxSetCurrent)(void* context);
  int (*cuStreamQuery)(void* stream);
  int (*cuGetErrorName)(int error, const char** name);
  int (*cuModuleLoadData)(void** module, const void* image);
  int (*cuModuleUnload)(void* module);
  int (*cuModuleGetFunction)(void** function, void* module, const char* name);
  int (*cuLaunchKernel)(void* function, unsigned grid_x, unsigned grid_y,
                        unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared_bytes, void* stream,
                        void** parameters, void** extra);
};

class Driver {
 public:
  // Starts it. NoDriver: `library` is not there, is no driver, or says no.
  static std::variant<std::shared_ptr<const Driver>, CudaError> Load(
      const char* library = "libcuda.so.1");

  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  const DriverCalls& calls() const { return calls_; }
  // The newest CUDA that it can do: 13000 is 13.0.
  int version() const { return version_; }

  // "cuLaunchKernel: CUDA_ERROR_NOT_FOUND (500)".
  std::string Words(const char* call, int error) const;

 private:
  Driver() = default;

  void* library_ = nullptr;
  DriverCalls calls_ = {};
  int version_ = 0;
};

}  // namespace pactrain::trainer::cuda

#endif  // PACTRAIN_TRAINER_CUDA_DRIVER_H_
