#include "config/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace pactrain::config {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// Null: errno says why. Waits for nobody who would write to a FIFO.
File Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  return File(fd < 0 ? nullptr : fdopen(fd, "r"));
}

bool IsRegular(std::FILE* file) {
  struct stat about = {};
  return fstat(fileno(file), &about) == 0 && S_ISREG(about.st_mode);
}

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  const std::string quoted =
      absl::StrCat("'", absl::Utf8SafeCEscape(path), "'");
  const File file = Open(path);
  if (file != nullptr && !IsRegular(file.get())) {
    return absl::InvalidArgumentError(absl::StrCat(
        quoted, " is a directory, pipe or device; give a regular file"));
  }
  std::string contents(kMaxFileBytes + 1, '\0');
  if (file != nullptr) {
    contents.resize(
        std::fread(contents.data(), 1, contents.size(), file.get()));
  }
  if (file == nullptr || std::ferror(file.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(quoted, " cannot be read"));
  }
  if (contents.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(quoted, " is larger than ", kMaxFileBytes,
                     " bytes, more than settings need; give another file"));
  }
  return contents;
}

}  // namespace pactrain::config
