#include "agent/local/own_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "base/fd.h"
#include "base/log.h"

namespace pactrain::agent {

std::string ReadOwnFile(const std::string& path, size_t most) {
  // Not blocked by a FIFO that somebody has put there.
  const base::Fd file(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid() && errno == ENOENT) return "";
  struct stat info = {};
  if (!file.valid() || fstat(file.get(), &info) != 0 ||
      !S_ISREG(info.st_mode) || info.st_uid != geteuid() ||
      (info.st_mode & 022) != 0) {
    LOG_WARN(
        "{} is not used: it is no plain file that user {} owns and nobody "
        "else may write; remove it",
        path, geteuid());
    return "";
  }
  std::string text;
  std::array<char, 16384> part;
  while (text.size() <= most) {
    const ssize_t bytes = read(file.get(), part.data(), part.size());
    if (bytes <= 0) return bytes == 0 ? text : "";
    text.append(part.data(), static_cast<size_t>(bytes));
  }
  return "";
}

bool ReplaceFile(const std::string& path, absl::string_view text) {
  const std::string other = path + ".new";
  unlink(other.c_str());
  base::Fd file(
      open(other.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return false;
  while (!text.empty()) {
    const ssize_t bytes = write(file.get(), text.data(), text.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) {
      const int error = errno;
      unlink(other.c_str());
      errno = error;
      return false;
    }
    text.remove_prefix(static_cast<size_t>(bytes));
  }
  return rename(other.c_str(), path.c_str()) == 0;
}

}  // namespace pactrain::agent
