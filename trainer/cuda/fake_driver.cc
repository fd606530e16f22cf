#include "trainer/cuda/fake_driver.h"

#include <cstdio>
#include <cstring>
#include <tuple>
#include <utility>

#include "kernels/cuda/on_cpu.h"
// The macros of on_cpu.h are for this one.
#include "kernels/cuda/kernels.cu"

namespace pactrain::trainer::cuda {
namespace {

FakeDriver fake;

// 0, or what this call is to fail with.
int Called(const char* name) {
  fake.calls.emplace_back(name);
  return fake.failing == name ? fake.error : 0;
}

// Calls a kernel with what its parameters point to, as cuLaunchKernel does.
template <typename... Arguments, size_t... kIndex>
void Apply(void (*kernel)(Arguments...), void** parameters,
           std::index_sequence<kIndex...>) {
  kernel(*static_cast<Arguments*>(parameters[kIndex])...);
}
template <typename... Arguments>
void Apply(void (*kernel)(Arguments...), void** parameters) {
  Apply(kernel, parameters, std::index_sequence_for<Arguments...>());
}

struct Kernel {
  const char* name;
  void (*apply)(void** parameters);
};
#define PACTRAIN_KERNEL(name)                                  \
  {                                                            \
#name, [](void** parameters) { Apply(&name, parameters); } \
  }
const Kernel kKernels[] = {PACTRAIN_KERNEL(pactrain_compact_fp32),
                           PACTRAIN_KERNEL(pactrain_compact_bf16),
                           PACTRAIN_KERNEL(pactrain_expand_divide_fp32),
                           PACTRAIN_KERNEL(pactrain_expand_divide_bf16)};
#undef PACTRAIN_KERNEL

}  // namespace
}  // namespace pactrain::trainer::cuda

using pactrain::trainer::cuda::Called;
using pactrain::trainer::cuda::fake;
using pactrain::trainer::cuda::Kernel;
using pactrain::trainer::cuda::kKernels;

extern "C" {

pactrain::trainer::cuda::FakeDriver* pactrain_fake_driver() { return &fake; }

int cuInit(unsigned) { return Called("cuInit"); }

int cuDriverGetVersion(int* version) {
  *version = fake.version;
  return Called("cuDriverGetVersion");
}

int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(fake.capabilities.size());
  return Called("cuDeviceGetCount");
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return Called("cuDeviceGet");
}

int cuDeviceGetName(char* name, int bytes, int device) {
  std::snprintf(name, bytes, "Fake %d", device);
  return Called("cuDeviceGetName");
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const int capability = fake.capabilities.at(device);
  *value = attribute == 75   ? capability / 10
           : attribute == 76 ? capability % 10
                             : -1;
  return Called("cuDeviceGetAttribute");
}

int cuCtxGetDevice(int* device) {
  *device = static_cast<int>(fake.capabilities.size()) - 1;
  const int error = Called("cuCtxGetDevice");
  return error == 0 && !fake.has_context ? 201 : error;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == 201   ? "CUDA_ERROR_INVALID_CONTEXT"
          : error == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
          : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                         : nullptr;
  return *name == nullptr ? 1 : 0;
}

int cuModuleLoadData(void** module, const void* image) {
  const int error = Called("cuModuleLoadData");
  if (error != 0) return error;
  fake.image = image;
  *module = &fake.modules;
  ++fake.modules;
  return 0;
}

int cuModuleUnload(void* module) {
  if (module != &fake.modules) return 400;
  --fake.modules;
  return Called("cuModuleUnload");
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (module != &fake.modules) return 400;
  const int error = Called("cuModuleGetFunction");
  if (error != 0) return error;
  for (const Kernel& kernel : kKernels) {
    if (std::strcmp(kernel.name, name) == 0) {
      *function = const_cast<Kernel*>(&kernel);
      return 0;
    }
  }
  return 500;
}

int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y,
                   unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes, void* stream,
                   void** parameters, void** extra) {
  const int error = Called("cuLaunchKernel");
  if (error != 0) return error;
  if (grid_x == 0 || grid_y * grid_z * block_y * block_z != 1 ||
      shared_bytes != 0 || extra != nullptr) {
    return 1;  // CUDA_ERROR_INVALID_VALUE
  }
  fake.stream = stream;
  const auto& kernel = *static_cast<const Kernel*>(function);
  pactrain::on_cpu::RunGrid({grid_x, block_x},
                            [&] { kernel.apply(parameters); });
  return 0;
}

}  // extern "C"
