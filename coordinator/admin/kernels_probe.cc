#include "coordinator/admin/kernels_probe.h"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace pactrain::coordinator {
namespace {

constexpr char kName[] = "libpactrain_trainer.so";

}  // namespace

absl::StatusOr<std::string> FindTrainerLibrary(const std::string& named) {
  if (!named.empty()) return named;
  std::error_code error;
  const auto folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const auto& library :
       {folder / kName, folder.parent_path() / "lib" / kName}) {
    if (std::filesystem::exists(library, error)) return library.string();
  }
  return absl::NotFoundError(
      absl::StrCat("no ", kName, " lies beside this program"));
}

absl::StatusOr<Kernels> AskKernels(const std::string& library) {
  void* loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the trainer library does not load: ", dlerror()));
  }
  // trainer/pactrain.h
  const auto status = reinterpret_cast<int (*)(char*, uint64_t)>(
      dlsym(loaded, "pt_cuda_status"));
  if (status == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        library, " is no trainer library, or one of an older release"));
  }
  std::array<char, 2048> words;
  const int reason = status(words.data(), words.size());
  return Kernels{reason == 0, words.data()};
}

}  // namespace pactrain::coordinator
