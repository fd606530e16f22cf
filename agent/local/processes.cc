#include "agent/local/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace pactrain::agent {
namespace {

// Fields of /proc/PID/stat that follow the name, up to the start time.
constexpr size_t kStartField = 19;

// All of a small file; empty: it cannot be read.
std::string ReadSmall(const std::string& path) {
  const base::Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> text;
  const ssize_t bytes = read(file.get(), text.data(), text.size());
  return bytes > 0 ? std::string(text.data(), static_cast<size_t>(bytes)) : "";
}

std::string ReadLink(const std::string& path) {
  std::array<char, 256> text;
  const ssize_t bytes = readlink(path.c_str(), text.data(), text.size());
  return bytes > 0 ? std::string(text.data(), static_cast<size_t>(bytes)) : "";
}

}  // namespace

std::string PlaceOfProcesses() {
  const std::string boot(
      absl::StripAsciiWhitespace(ReadSmall("/proc/sys/kernel/random/boot_id")));
  const std::string processes = ReadLink("/proc/self/ns/pid");
  // Of another namespace's /proc the numbers would be others.
  if (boot.empty() || processes.empty() ||
      ReadLink("/proc/self") != absl::StrCat(getpid())) {
    return "";
  }
  // Systems without namespaces of time have none to tell apart.
  return absl::StrCat(boot, "/", processes, "/",
                      ReadLink("/proc/self/ns/time"));
}

std::optional<uint64_t> ParseStart(absl::string_view stat) {
  // The name is in parentheses and may hold anything, also parentheses.
  const size_t name = stat.rfind(')');
  if (name == stat.npos) return std::nullopt;
  const std::vector<absl::string_view> fields = absl::StrSplit(
      stat.substr(name + 1), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  uint64_t start = 0;
  if (fields.size() <= kStartField ||
      !absl::SimpleAtoi(fields[kStartField], &start)) {
    return std::nullopt;
  }
  return start;
}

std::optional<uint64_t> StartOf(pid_t process) {
  return ParseStart(ReadSmall(absl::StrCat("/proc/", process, "/stat")));
}

bool HasEnded(int process) {
  pollfd ended = {process, POLLIN, 0};
  return poll(&ended, 1, 0) == 1;
}

Former FindFormer(pid_t process, uint64_t start) {
  Former former;
  former.process =
      base::Fd(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (!former.process.valid()) {
    former.dead = errno == ESRCH;
    return former;
  }
  // The one that we hold now: its number goes to no other.
  const std::optional<uint64_t> found = StartOf(process);
  former.dead = (found && *found != start) || HasEnded(former.process.get());
  return former;
}

}  // namespace pactrain::agent
