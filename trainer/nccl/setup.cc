#include "trainer/nccl/setup.h"

#include <cstring>
#include <memory>
#include <utility>

namespace pactrain::trainer::nccl {
namespace {

constexpr int kUuidBytes = 16;

std::string UuidText(const unsigned char* uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < kUuidBytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid[i] / 16];
    text += kDigits[uuid[i] % 16];
  }
  return text;
}

}  // namespace

std::variant<Setup, std::string> FindSetup() {
  auto library = Library::Find();
  if (const auto* why = std::get_if<std::string>(&library)) return *why;
  auto driver = cuda::Driver::Load();
  if (const auto* error = std::get_if<cuda::CudaError>(&driver)) {
    return error->text;
  }
  Setup setup;
  setup.library = std::get<std::shared_ptr<const Library>>(std::move(library));
  setup.driver =
      std::get<std::shared_ptr<const cuda::Driver>>(std::move(driver));
  const cuda::DriverCalls& calls = setup.driver->calls();
  int device = 0;
  unsigned char uuid[kUuidBytes] = {};
  char name[256] = {};
  const auto words = [&](const char* call, int error) {
    return "this thread has no GPU: " + setup.driver->Words(call, error);
  };
  if (const int error = calls.cuCtxGetCurrent(&setup.context); error != 0) {
    return words("cuCtxGetCurrent", error);
  }
  if (const int error = calls.cuCtxGetDevice(&device); error != 0) {
    return words("cuCtxGetDevice", error);
  }
  if (const int error = calls.cuDeviceGetUuid_v2(uuid, device); error != 0) {
    return words("cuDeviceGetUuid", error);
  }
  if (const int error = calls.cuDeviceGetName(name, sizeof(name), device);
      error != 0) {
    return words("cuDeviceGetName", error);
  }
  // "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
  const bool is_part = std::strstr(name, " MIG ") != nullptr;
  setup.device = (is_part ? "MIG-" : "GPU-") + UuidText(uuid);
  setup.gpu = name;
  return setup;
}

}  // namespace pactrain::trainer::nccl
