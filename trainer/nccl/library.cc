#include "trainer/nccl/library.h"

#include <dlfcn.h>

namespace pactrain::trainer::nccl {
namespace {

// An abort of older ones may hang (github.com/pytorch/pytorch/issues/149153).
constexpr int kOldest = 22602;
// These fail within a process that starts a communicator anew (README of
// NVIDIA/nvidia-resiliency-ext).
constexpr int kFirstRefused = 22803, kLastRefused = 22808;

template <typename Function>
bool Find(void* library, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(dlsym(library, name));
  return *out != nullptr;
}

// The name of the first function that is missing, or null.
const char* FindAll(void* library, Calls* calls) {
#define PACTRAIN_FIND(name) \
  if (!Find(library, #name, &calls->name)) return #name
  PACTRAIN_FIND(ncclGetVersion);
  PACTRAIN_FIND(ncclGetUniqueId);
  PACTRAIN_FIND(ncclCommInitRankConfig);
  PACTRAIN_FIND(ncclCommGetAsyncError);
  PACTRAIN_FIND(ncclAllReduce);
  PACTRAIN_FIND(ncclCommDestroy);
  PACTRAIN_FIND(ncclCommAbort);
  PACTRAIN_FIND(ncclGetErrorString);
  PACTRAIN_FIND(ncclGetLastError);
#undef PACTRAIN_FIND
  Find(library, "ncclCommRevoke", &calls->ncclCommRevoke);
  return nullptr;
}

}  // namespace

std::string VersionText(int version) {
  return std::to_string(version / 10000) + "." +
         std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::string Refusal(int version) {
  if (version < kOldest) {
    return "NCCL " + VersionText(version) + " is older than " +
           VersionText(kOldest) + ": an abort may hang";
  }
  if (version >= kFirstRefused && version <= kLastRefused) {
    return "NCCL " + VersionText(version) + " is one of " +
           VersionText(kFirstRefused) + " to " + VersionText(kLastRefused) +
           ", which do not recover in a process that goes on";
  }
  return "";
}

std::variant<std::shared_ptr<const Library>, std::string> Library::Find(
    const char* name) {
  const std::shared_ptr<Library> found(new Library());
  found->library_ = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  if (found->library_ == nullptr) {
    return std::string(name) +
           " is not loaded in this process; torch brings it with its builds "
           "for CUDA";
  }
  Calls& calls = found->calls_;
  if (const char* missing = FindAll(found->library_, &calls)) {
    return std::string(name) + " is no NCCL that we know: it has no " + missing;
  }
  if (const int result = calls.ncclGetVersion(&found->version_);
      result != kSuccess) {
    return found->Words("ncclGetVersion", result);
  }
  if (std::string refusal = Refusal(found->version_); !refusal.empty()) {
    return refusal;
  }
  Dl_info info = {};
  if (dladdr(reinterpret_cast<void*>(calls.ncclGetVersion), &info) != 0 &&
      info.dli_fname != nullptr) {
    found->file_ = info.dli_fname;
  }
  return found;
}

Library::~Library() {
  if (library_ != nullptr) dlclose(library_);
}

std::string Library::Words(const char* call, int result) const {
  const char* name = calls_.ncclGetErrorString(result);
  const char* last = calls_.ncclGetLastError(nullptr);
  std::string words = std::string(call) + ": " +
                      (name == nullptr ? "an error without a name" : name) +
                      " (" + std::to_string(result) + ")";
  if (last != nullptr && last[0] != 0) words += std::string(": ") + last;
  return words.substr(0, words.find('\n'));
}

}  // namespace pactrain::trainer::nccl
