#include "config/small_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/safe_folders.h"

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

absl::StatusOr<std::string> Read(const std::string& path, bool guarded) {
  const std::string quoted =
      absl::StrCat("'", absl::Utf8SafeCEscape(path), "'");
  const File file = Open(path);
  struct stat about = {};
  if (file != nullptr &&
      (fstat(fileno(file.get()), &about) != 0 || !S_ISREG(about.st_mode))) {
    return absl::InvalidArgumentError(absl::StrCat(
        quoted, " is a directory, pipe or device; give a regular file"));
  }
  if (file != nullptr && guarded) {
    const std::string why = base::WhyNotGuarded(path, about);
    if (!why.empty()) {
      return absl::PermissionDeniedError(
          absl::StrCat(quoted, " is not safe: ", why));
    }
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

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  return Read(path, /*guarded=*/false);
}

absl::StatusOr<std::string> ReadGuardedFile(const std::string& path) {
  return Read(path, /*guarded=*/true);
}

}  // namespace pactrain::config
