#include "agent/local/memory_limits.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace pactrain::agent {
namespace {

// The number after `key` in a file of lines "KEY NUMBER".
std::optional<uint64_t> ReadField(const std::string& path,
                                  absl::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, key)) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(rest, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t value = 0;
    if (!words.empty() && absl::SimpleAtoi(words[0], &value)) return value;
  }
  return std::nullopt;
}

// A file that is one number; nothing if it is not there or says "max".
std::optional<uint64_t> ReadNumber(const std::string& path) {
  return ReadField(path, "");
}

// The names that a version of cgroups has for the same things.
struct CgroupFiles {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* cache;  // In memory.stat.
};
constexpr CgroupFiles kVersion1 = {
    "/sys/fs/cgroup/memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes",
    "total_inactive_file "};
constexpr CgroupFiles kVersion2 = {"/sys/fs/cgroup", "/memory.max",
                                   "/memory.current", "inactive_file "};

std::optional<uint64_t> AvailableIn(const CgroupFiles& files,
                                    const std::string& folder) {
  const auto limit = ReadNumber(folder + files.limit);
  const auto usage = ReadNumber(folder + files.usage);
  if (!limit.has_value() || !usage.has_value()) return std::nullopt;
  const uint64_t cache =
      ReadField(folder + "/memory.stat", files.cache).value_or(0);
  const uint64_t used = *usage - std::min(*usage, cache);
  return *limit - std::min(*limit, used);
}

void Lower(std::optional<AvailableMemory>& least,
           const std::optional<uint64_t>& bytes, const std::string& where) {
  if (!bytes.has_value()) return;
  if (!least.has_value() || *bytes < least->bytes) least = {*bytes, where};
}

// In a container `path` may be the host's name for it, and all that is mounted
// is the container's own: the folders above are tried up to the mount.
void LowerByCgroup(const CgroupFiles& files, const std::string& root,
                   std::string path, std::optional<AvailableMemory>& least) {
  while (true) {
    if (path == "/") path.clear();
    Lower(least, AvailableIn(files, absl::StrCat(root, files.mount, path)),
          absl::StrCat("cgroup ", path.empty() ? "/" : path));
    if (path.empty()) return;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

MemoryNow ReadMemory(const std::string& root) {
  MemoryNow now;
  auto machine = ReadField(root + "/proc/meminfo", "MemAvailable:");
  if (machine.has_value()) *machine <<= 10;
  Lower(now.available, machine, "the machine");
  std::ifstream cgroups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(cgroups, line)) {
    // "4:memory:/path", or "0::/path" of version 2.
    const std::vector<std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !absl::StartsWith(parts[2], "/")) continue;
    if (parts[1].empty()) {
      LowerByCgroup(kVersion2, root, parts[2], now.available);
    } else if (parts[1] == "memory") {
      LowerByCgroup(kVersion1, root, parts[2], now.available);
    }
  }
  now.private_bytes =
      ReadField(root + "/proc/self/status", "RssAnon:").value_or(0) << 10;
  return now;
}

}  // namespace pactrain::agent
