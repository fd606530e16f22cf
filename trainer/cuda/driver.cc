#include "trainer/cuda/driver.h"

#include <dlfcn.h>

namespace pactrain::trainer::cuda {
namespace {

// False: the library has no such function.
template <typename Function>
bool Find(void* library, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(dlsym(library, name));
  return *out != nullptr;
}

// The name of the first function that is missing, or null.
const char* FindAll(void* library, DriverCalls* calls) {
#define PACTRAIN_FIND(name, symbol) \
  if (!Find(library, symbol, &calls->name)) return symbol
  PACTRAIN_FIND(cuInit, "cuInit");
  PACTRAIN_FIND(cuDriverGetVersion, "cuDriverGetVersion");
  PACTRAIN_FIND(cuDeviceGetCount, "cuDeviceGetCount");
  PACTRAIN_FIND(cuDeviceGet, "cuDeviceGet");
  PACTRAIN_FIND(cuDeviceGetName, "cuDeviceGetName");
  PACTRAIN_FIND(cuDeviceGetAttribute, "cuDeviceGetAttribute");
  PACTRAIN_FIND(cuDeviceGetUuid_v2, "cuDeviceGetUuid_v2");
  PACTRAIN_FIND(cuCtxGetDevice, "cuCtxGetDevice");
  PACTRAIN_FIND(cuCtxGetCurrent, "cuCtxGetCurrent");
  PACTRAIN_FIND(cuCtxSetCurrent, "cuCtxSetCurrent");
  PACTRAIN_FIND(cuStreamQuery, "cuStreamQuery");
  PACTRAIN_FIND(cuGetErrorName, "cuGetErrorName");
  PACTRAIN_FIND(cuModuleLoadData, "cuModuleLoadData");
  PACTRAIN_FIND(cuModuleUnload, "cuModuleUnload");
  PACTRAIN_FIND(cuModuleGetFunction, "cuModuleGetFunction");
  PACTRAIN_FIND(cuLaunchKernel, "cuLaunchKernel");
#undef PACTRAIN_FIND
  return nullptr;
}

}  // namespace

std::variant<std::shared_ptr<const Driver>, CudaError> Driver::Load(
    const char* library) {
  const std::shared_ptr<Driver> driver(new Driver());
  // Not unmapped again: it has threads and handlers of its own.
  driver->library_ = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (driver->library_ == nullptr) {
    const char* why = dlerror();
    return CudaError{Reason::kNoDriver, std::string("no NVIDIA driver (") +
                                            (why == nullptr ? library : why) +
                                            ")"};
  }
  DriverCalls& calls = driver->calls_;
  if (const char* missing = FindAll(driver->library_, &calls)) {
    return CudaError{Reason::kNoDriver, std::string(library) +
                                            " is no driver that we know: it "
                                            "has no " +
                                            missing};
  }
  if (const int error = calls.cuInit(0); error != 0) {
    return CudaError{
        error == kErrorNoDevice ? Reason::kNoDevice : Reason::kNoDriver,
        error == kErrorNoDevice
            ? "the driver sees no GPU"
            : "the driver does not start: " + driver->Words("cuInit", error)};
  }
  if (const int error = calls.cuDriverGetVersion(&driver->version_);
      error != 0) {
    return CudaError{Reason::kNoDriver,
                     driver->Words("cuDriverGetVersion", error)};
  }
  return driver;
}

Driver::~Driver() {
  if (library_ != nullptr) dlclose(library_);
}

std::string Driver::Words(const char* call, int error) const {
  const char* name = nullptr;
  if (calls_.cuGetErrorName(error, &name) != 0 || name == nullptr) {
    name = "an error without a name";
  }
  return std::string(call) + ": " + name + " (" + std::to_string(error) + ")";
}

}  // namespace pactrain::trainer::cuda
