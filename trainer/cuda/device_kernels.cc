#include "trainer/cuda/device_kernels.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/cuda/mask_image.h"
#include "kernels/cuda/shapes.h"

namespace pactrain::trainer::cuda {
namespace {

using pactrain::cuda::DeviceCode;

// "13.0".
std::string Release(int version) {
  return std::to_string(version / 1000) + "." +
         std::to_string(version % 1000 / 10);
}

std::string Capability(int capability) {
  return std::to_string(capability / 10) + "." +
         std::to_string(capability % 10);
}

// "8.0, 8.6 and newer".
std::string Architectures(const DeviceCode& code) {
  std::string text;
  for (int architecture : code.architectures) {
    text += (text.empty() ? "" : ", ") + Capability(architecture);
  }
  return text + (code.ptx == 0 ? "" : " and newer");
}

// Machine code runs on its architecture and on later ones of the same major.
bool HasMachineCode(const DeviceCode& code, int capability) {
  return std::any_of(code.architectures.begin(), code.architectures.end(),
                     [&](int architecture) {
                       return architecture / 10 == capability / 10 &&
                              architecture <= capability;
                     });
}

struct Device {
  std::string name;
  int capability = 0;
};

std::variant<Device, CudaError> Look(const Driver& driver, int device) {
  const DriverCalls& calls = driver.calls();
  int major = 0, minor = 0;
  std::array<char, 128> name = {};
  for (const auto& [call, error] :
       {std::pair("cuDeviceGetAttribute",
                  calls.cuDeviceGetAttribute(&major, kCapabilityMajor, device)),
        std::pair("cuDeviceGetAttribute",
                  calls.cuDeviceGetAttribute(&minor, kCapabilityMinor, device)),
        std::pair(
            "cuDeviceGetName",
            calls.cuDeviceGetName(name.data(), name.size() - 1, device))}) {
    if (error != 0) {
      return CudaError{Reason::kDriverError, driver.Words(call, error)};
    }
  }
  return Device{name.data(), 10 * major + minor};
}

// All of this machine's, in order; only the thread's where it has a context.
std::variant<std::vector<int>, CudaError> DevicesToDescribe(
    const Driver& driver) {
  const DriverCalls& calls = driver.calls();
  int current = 0;
  if (calls.cuCtxGetDevice(&current) == 0) return std::vector<int>{current};
  int count = 0;
  if (const int error = calls.cuDeviceGetCount(&count); error != 0) {
    return CudaError{Reason::kDriverError,
                     driver.Words("cuDeviceGetCount", error)};
  }
  if (count == 0) return CudaError{Reason::kNoDevice, "the driver sees no GPU"};
  std::vector<int> devices(count);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    if (const int error = calls.cuDeviceGet(&devices[ordinal], ordinal);
        error != 0) {
      return CudaError{Reason::kDriverError,
                       driver.Words("cuDeviceGet", error)};
    }
  }
  return devices;
}

CudaError NotBuilt() {
  return {Reason::kNotBuilt,
          "this library was built without nvcc (`make build-cuda`)"};
}

std::optional<CudaError> CheckElements(uint32_t elements) {
  if (elements <= pactrain::cuda::kMaxElements) return {};
  return CudaError{Reason::kInvalidArgument,
                   "a bucket of " + std::to_string(elements) +
                       " elements; allowed are " +
                       std::to_string(pactrain::cuda::kMaxElements)};
}

DevicePointer OffsetsOf(const DeviceMask& mask) {
  return mask.image == 0
             ? 0
             : mask.image + pactrain::cuda::MaskOffsetsAt(mask.elements);
}

}  // namespace

std::optional<CudaError> CheckCode(const DeviceCode& code, int driver_version,
                                   int capability) {
  if (code.fatbin.empty()) return NotBuilt();
  const bool machine_code = HasMachineCode(code, capability);
  // A driver runs machine code of its own major release, but of PTX only what
  // is not newer than itself.
  const int floor =
      machine_code ? code.cuda_version / 1000 * 1000 : code.cuda_version;
  if (driver_version < floor) {
    return CudaError{Reason::kDriverTooOld,
                     "the driver can do CUDA " + Release(driver_version) +
                         ", the kernels need " + Release(floor)};
  }
  if (machine_code || (code.ptx != 0 && capability >= code.ptx)) return {};
  return CudaError{Reason::kNoCode,
                   "the GPU has compute capability " + Capability(capability) +
                       ", the kernels are for " + Architectures(code)};
}

std::variant<std::unique_ptr<DeviceKernels>, CudaError> DeviceKernels::Load(
    std::shared_ptr<const Driver> driver, const DeviceCode& code) {
  if (code.fatbin.empty()) return NotBuilt();
  const DriverCalls& calls = driver->calls();
  int device = 0;
  if (const int error = calls.cuCtxGetDevice(&device); error != 0) {
    return CudaError{
        Reason::kNoDevice,
        "this thread has no GPU: " + driver->Words("cuCtxGetDevice", error)};
  }
  const auto found = Look(*driver, device);
  if (const auto* error = std::get_if<CudaError>(&found)) return *error;
  const int capability = std::get<Device>(found).capability;
  if (auto error = CheckCode(code, driver->version(), capability)) {
    return *std::move(error);
  }
  std::unique_ptr<DeviceKernels> kernels(new DeviceKernels(driver));
  if (const int error =
          calls.cuModuleLoadData(&kernels->module_, code.fatbin.data());
      error != 0) {
    kernels->module_ = nullptr;
    return CudaError{
        error == kErrorNoBinary ? Reason::kNoCode : Reason::kDriverError,
        driver->Words("cuModuleLoadData", error)};
  }
  Functions& functions = kernels->functions_;
  for (const auto& [name, function] :
       {std::pair("pactrain_compact_fp32", &functions.compact_fp32),
        std::pair("pactrain_compact_bf16", &functions.compact_bf16),
        std::pair("pactrain_expand_divide_fp32", &functions.expand_divide_fp32),
        std::pair("pactrain_expand_divide_bf16",
                  &functions.expand_divide_bf16)}) {
    if (const int error =
            calls.cuModuleGetFunction(function, kernels->module_, name);
        error != 0) {
      return CudaError{Reason::kDriverError,
                       std::string(name) + ": " +
                           driver->Words("cuModuleGetFunction", error)};
    }
  }
  return kernels;
}

DeviceKernels::~DeviceKernels() {
  if (module_ != nullptr) driver_->calls().cuModuleUnload(module_);
}

std::optional<CudaError> DeviceKernels::Launch(void* function,
                                               uint32_t elements, Stream stream,
                                               void** parameters) const {
  if (elements == 0) return {};  // A grid must have a block.
  const int error = driver_->calls().cuLaunchKernel(
      function, pactrain::cuda::BlocksOf(elements), 1, 1,
      pactrain::cuda::kBlockThreads, 1, 1, 0, stream, parameters, nullptr);
  if (error == 0) return {};
  return CudaError{Reason::kDriverError,
                   driver_->Words("cuLaunchKernel", error)};
}

std::optional<CudaError> DeviceKernels::Compact(
    const DeviceMask& mask, ElementType type, DevicePointer in,
    bool count_outside, DevicePointer out, DevicePointer totals,
    Stream stream) const {
  if (auto error = CheckElements(mask.elements)) return error;
  DevicePointer words = mask.image, offsets = OffsetsOf(mask);
  uint32_t elements = mask.elements, count = count_outside ? 1 : 0;
  void* parameters[] = {&in,    &words, &offsets, &elements,
                        &count, &out,   &totals};
  return Launch(type == ElementType::kFloat32 ? functions_.compact_fp32
                                              : functions_.compact_bf16,
                elements, stream, parameters);
}

std::optional<CudaError> DeviceKernels::ExpandDivide(
    const DeviceMask& mask, ElementType type, DevicePointer in,
    uint32_t world_size, DevicePointer out, Stream stream) const {
  if (auto error = CheckElements(mask.elements)) return error;
  if (world_size == 0) {
    return CudaError{Reason::kInvalidArgument,
                     "world_size is 0; allowed are 1 and more"};
  }
  DevicePointer words = mask.image, offsets = OffsetsOf(mask);
  uint32_t elements = mask.elements;
  auto divisor = static_cast<float>(world_size);
  void* parameters[] = {&in, &words, &offsets, &elements, &divisor, &out};
  return Launch(type == ElementType::kFloat32 ? functions_.expand_divide_fp32
                                              : functions_.expand_divide_bf16,
                elements, stream, parameters);
}

std::variant<std::string, CudaError> Describe(const char* library,
                                              const DeviceCode& code) {
  if (code.fatbin.empty()) return NotBuilt();
  const auto loaded = Driver::Load(library);
  if (const auto* error = std::get_if<CudaError>(&loaded)) return *error;
  const Driver& driver = *std::get<std::shared_ptr<const Driver>>(loaded);
  const auto devices = DevicesToDescribe(driver);
  if (const auto* error = std::get_if<CudaError>(&devices)) return *error;
  std::string text;
  for (int device : std::get<std::vector<int>>(devices)) {
    const auto found = Look(driver, device);
    if (const auto* error = std::get_if<CudaError>(&found)) return *error;
    const auto& [name, capability] = std::get<Device>(found);
    // A CUdevice is its number.
    const std::string who = "GPU " + std::to_string(device) + ", " + name;
    if (auto error = CheckCode(code, driver.version(), capability)) {
      return CudaError{error->reason, who + ": " + error->text};
    }
    text += (text.empty() ? "" : "; ") + who + " (" + Capability(capability) +
            (HasMachineCode(code, capability) ? ")" : ", by PTX)");
  }
  return text + "; driver of CUDA " + Release(driver.version());
}

}  // namespace pactrain::trainer::cuda
