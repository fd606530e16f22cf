#include "trainer/cuda/fake_driver.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

#include "kernels/cuda/on_cpu.h"
// The macros of on_cpu.h are for this one.
#include "kernels/cuda/kernels.cu"

namespace pactrain::trainer::cuda {
namespace {

FakeDriver fake;
FakeEnqueue* enqueue = nullptr;
FakeQuery* query = nullptr;
FakeContext* context_by = nullptr;
thread_local bool was_set = false;  // By cuCtxSetCurrent().
std::mutex mutex;                   // Another thread may query a stream.

// 0, or what this call is to fail with.
int Called(const char* name) {
  const std::lock_guard<std::mutex> lock(mutex);
  fake.calls.emplace_back(name);
  return fake.failing == name ? fake.error : 0;
}

// Whether this thread has one.
bool HasContext() {
  return fake.has_context && (was_set || context_by == nullptr || context_by());
}

// What tests say to processes that start others.
int Given(const char* variable, int otherwise) {
  const char* given = std::getenv(variable);
  return given == nullptr ? otherwise : std::atoi(given);
}

using Call = std::function<void()>;

// A kernel with what its parameters point to now, as cuLaunchKernel takes them.
template <typename... Arguments, size_t... kIndex>
Call Bind(void (*kernel)(Arguments...), void** parameters,
          std::index_sequence<kIndex...>) {
  return [kernel, values = std::tuple<Arguments...>(*static_cast<Arguments*>(
                      parameters[kIndex])...)] { std::apply(kernel, values); };
}
template <typename... Arguments>
Call Bind(void (*kernel)(Arguments...), void** parameters) {
  return Bind(kernel, parameters, std::index_sequence_for<Arguments...>());
}

void RunAndFree(void* call) {
  const std::unique_ptr<Call> taken(static_cast<Call*>(call));
  (*taken)();
}

struct Kernel {
  const char* name;
  Call (*bind)(void** parameters);
};
#define PACTRAIN_KERNEL(name)                                        \
  {                                                                  \
#name, [](void** parameters) { return Bind(&name, parameters); } \
  }
const Kernel kKernels[] = {PACTRAIN_KERNEL(pactrain_compact_fp32),
                           PACTRAIN_KERNEL(pactrain_compact_bf16),
                           PACTRAIN_KERNEL(pactrain_expand_divide_fp32),
                           PACTRAIN_KERNEL(pactrain_expand_divide_bf16)};
#undef PACTRAIN_KERNEL

}  // namespace
}  // namespace pactrain::trainer::cuda

using pactrain::trainer::cuda::Call;
using pactrain::trainer::cuda::Called;
using pactrain::trainer::cuda::context_by;
using pactrain::trainer::cuda::enqueue;
using pactrain::trainer::cuda::fake;
using pactrain::trainer::cuda::FakeContext;
using pactrain::trainer::cuda::FakeEnqueue;
using pactrain::trainer::cuda::FakeQuery;
using pactrain::trainer::cuda::Given;
using pactrain::trainer::cuda::HasContext;
using pactrain::trainer::cuda::Kernel;
using pactrain::trainer::cuda::kKernels;
using pactrain::trainer::cuda::query;
using pactrain::trainer::cuda::RunAndFree;
using pactrain::trainer::cuda::was_set;

extern "C" {

pactrain::trainer::cuda::FakeDriver* pactrain_fake_driver() { return &fake; }

int pactrain_fake_launches() {
  return static_cast<int>(
      std::count(fake.calls.begin(), fake.calls.end(), "cuLaunchKernel"));
}

void pactrain_fake_enqueue_by(FakeEnqueue* function) { enqueue = function; }

void pactrain_fake_query_by(FakeQuery* function) { query = function; }

void pactrain_fake_context_by(FakeContext* function) { context_by = function; }

int cuInit(unsigned) { return Called("cuInit"); }

int cuDriverGetVersion(int* version) {
  *version = Given("FAKE_CUDA", fake.version);
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
  const char* given = std::getenv("FAKE_GPU_NAME");
  if (given == nullptr) {
    std::snprintf(name, bytes, "Fake %d", device);
  } else {
    std::snprintf(name, bytes, "%s", given);
  }
  return Called("cuDeviceGetName");
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const int capability = Given("FAKE_CAPABILITY", fake.capabilities.at(device));
  *value = attribute == 75   ? capability / 10
           : attribute == 76 ? capability % 10
                             : -1;
  return Called("cuDeviceGetAttribute");
}

int cuCtxGetDevice(int* device) {
  *device = static_cast<int>(fake.capabilities.size()) - 1;
  const int error = Called("cuCtxGetDevice");
  return error == 0 && !HasContext() ? 201 : error;
}

// Each process has another GPU, unless it is told which.
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  std::memset(uuid, 0, 16);
  const int number = Given("FAKE_GPU", static_cast<int>(getpid()));
  std::memcpy(uuid, &number, sizeof(number));
  uuid[15] = static_cast<unsigned char>(device);
  return Called("cuDeviceGetUuid_v2");
}

int cuCtxGetCurrent(void** context) {
  *context = HasContext() ? &fake : nullptr;
  return Called("cuCtxGetCurrent");
}

int cuCtxSetCurrent(void* context) {
  was_set = context == &fake;
  return was_set ? Called("cuCtxSetCurrent") : 201;
}

int cuStreamQuery(void* stream) {
  const int error = Called("cuStreamQuery");
  if (error != 0 || query == nullptr) return error;
  return query(stream);
}

int cuGetErrorName(int error, const char** name) {
  *name = error == 201   ? "CUDA_ERROR_INVALID_CONTEXT"
          : error == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
          : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : error == 719 ? "CUDA_ERROR_LAUNCH_FAILED"
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
  const pactrain::on_cpu::Grid grid = {grid_x, block_x};
  Call run = [grid, call = kernel.bind(parameters)] {
    pactrain::on_cpu::RunGrid(grid, call);
  };
  if (enqueue == nullptr) {
    run();
  } else {
    enqueue(stream, &RunAndFree, new Call(std::move(run)));
  }
  return 0;
}

}  // extern "C"
