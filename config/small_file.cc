#include "config/small_file.h"

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

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  const std::string quoted =
      absl::StrCat("'", absl::Utf8SafeCEscape(path), "'");
  const std::unique_ptr<std::FILE, CloseFile> file(
      std::fopen(path.c_str(), "re"));
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
