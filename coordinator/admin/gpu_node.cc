#include "coordinator/admin/gpu_node.h"

#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace pactrain::coordinator {
namespace {

constexpr uint64_t kLittleShm = uint64_t{1} << 30;
constexpr uint64_t kLittleLocked = uint64_t{1} << 30;
constexpr char kMpsFolder[] = "/tmp/nvidia-mps";

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun ...".
std::string DriverOf(const std::string& root) {
  std::ifstream file(root + "/proc/driver/nvidia/version");
  std::string line;
  if (!std::getline(file, line)) return "";
  for (const absl::string_view word : absl::StrSplit(line, ' ')) {
    const bool number = !word.empty() && word.front() >= '0' &&
                        word.front() <= '9' && absl::StrContains(word, '.');
    if (number) return std::string(word);
  }
  return "of an unknown version";
}

int VersionOf(const std::string& nccl) {
  void* loaded = dlopen(nccl.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (loaded == nullptr) return 0;
  const auto version =
      reinterpret_cast<int (*)(int*)>(dlsym(loaded, "ncclGetVersion"));
  int number = 0;
  return version != nullptr && version(&number) == 0 ? number : 0;
}

std::string NcclOf(const std::string& packages) {
  if (packages.empty()) return "";
  std::error_code error;
  for (const char* place :
       {"/nvidia/nccl/lib/libnccl.so.2", "/torch/lib/libnccl.so.2"}) {
    if (std::filesystem::exists(packages + place, error)) {
      return packages + place;
    }
  }
  return "";
}

std::string Size(uint64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (1 << 30));
}

struct Harm {
  const char* name;
  const char* value;  // Empty: any.
  const char* what;
};

// Those of NCCL act on groups of torch's own; PacTrain has none.
constexpr Harm kHarms[] = {
    {"CUDA_DEVICE_MAX_CONNECTIONS", "1",
     "all streams share one queue of the GPU: gradients are copied after what "
     "is computed, not beside it"},
    {"CUDA_LAUNCH_BLOCKING", "1",
     "each call waits for the GPU: nothing is copied while it computes"},
    {"NCCL_COMM_ID", "",
     "all communicators of NCCL meet at one address, and a script with two "
     "process groups hangs"},
    {"NCCL_COMM_BLOCKING", "1",
     "calls of NCCL wait without a bound: a lost rank hangs the others"},
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "1",
     "NCCL orders its own kernels after each other's streams, which may have "
     "two process groups wait for each other"},
};

void CheckHarms(const GpuNode& node, Findings& findings) {
  for (const Harm& harm : kHarms) {
    const auto found = node.variables.find(harm.name);
    if (found == node.variables.end() || found->second.empty()) continue;
    if (harm.value[0] != 0 && found->second != harm.value) continue;
    findings.push_back(
        {"gpu", Level::kWarning,
         absl::StrCat(harm.name, "=", found->second, ": ", harm.what),
         "unset it, unless the script needs it"});
  }
}

void CheckMemory(const GpuNode& node, Findings& findings) {
  if (!node.shm_bytes.has_value() || *node.shm_bytes < kLittleShm) {
    findings.push_back(
        {"gpu", Level::kWarning,
         node.shm_bytes.has_value()
             ? absl::StrCat("/dev/shm has ", Size(*node.shm_bytes),
                            ": NCCL and workers of DataLoader share memory "
                            "there")
             : "there is no /dev/shm, where NCCL and workers of DataLoader "
               "share memory",
         "give the container more, as with --shm-size=8g or an emptyDir of "
         "medium Memory"});
  }
  if (node.locked_limit.has_value() && *node.locked_limit < kLittleLocked) {
    findings.push_back(
        {"gpu", Level::kWarning,
         absl::StrCat("a process may lock ", Size(*node.locked_limit),
                      " of memory: gradients of a model on a GPU pass through "
                      "page-locked memory, as many bytes as they have"),
         "raise `ulimit -l`, or LimitMEMLOCK= of the service"});
  }
}

}  // namespace

GpuNode LookAtGpuNode(const std::string& root, const std::string& packages,
                      char** environment) {
  GpuNode node;
  node.driver = DriverOf(root);
  if (node.driver.empty()) return node;
  node.nccl_file = NcclOf(packages);
  if (!node.nccl_file.empty()) node.nccl_version = VersionOf(node.nccl_file);
  struct statvfs shm = {};
  if (statvfs((root + "/dev/shm").c_str(), &shm) == 0) {
    node.shm_bytes = uint64_t{shm.f_blocks} * shm.f_frsize;
  }
  struct rlimit locked = {};
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 &&
      locked.rlim_cur != RLIM_INFINITY) {
    node.locked_limit = locked.rlim_cur;
  }
  for (char** entry = environment; *entry != nullptr; ++entry) {
    const std::pair<std::string, std::string> variable =
        absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    if (absl::StartsWith(variable.first, "CUDA_") ||
        absl::StartsWith(variable.first, "NCCL_")) {
      node.variables.insert(variable);
    }
  }
  const auto named = node.variables.find("CUDA_MPS_PIPE_DIRECTORY");
  const std::string mps =
      named != node.variables.end() && !named->second.empty() ? named->second
                                                              : kMpsFolder;
  std::error_code error;
  if (std::filesystem::exists(root + mps + "/control", error)) node.mps = mps;
  return node;
}

Findings CheckGpuNode(const GpuNode& node) {
  if (node.driver.empty()) return {};
  const int nccl = node.nccl_version;
  const std::string library =
      node.nccl_file.empty() ? "torch's NCCL does not lie beside this package"
      : nccl == 0
          ? absl::StrCat(node.nccl_file, " is no NCCL")
          : absl::StrFormat("NCCL %d.%d.%d (%s)", nccl / 10000,
                            nccl / 100 % 100, nccl % 100, node.nccl_file);
  Findings findings = {{"gpu", Level::kOk,
                        absl::StrCat("NVIDIA driver ", node.driver, "; ",
                                     library, ", which PacTrain does not use"),
                        ""}};
  CheckMemory(node, findings);
  if (!node.mps.empty()) {
    findings.push_back(
        {"gpu", Level::kWarning,
         absl::StrCat("an MPS server answers at ", node.mps,
                      ": an error of one process on a GPU ends the others that "
                      "share it"),
         "stop it (echo quit | nvidia-cuda-mps-control), unless GPUs are to be "
         "shared"});
  }
  CheckHarms(node, findings);
  return findings;
}

}  // namespace pactrain::coordinator
