#include "coordinator/page/reader_token.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace pactrain::coordinator {
namespace {

constexpr size_t kShortest = 16, kLongest = 256;

// Takes as long wherever they differ.
bool IsSame(absl::string_view a, absl::string_view b) {
  unsigned char differs = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    differs |= static_cast<unsigned char>(a[i] ^ b[i % b.size()]);
  }
  return differs == 0;
}

}  // namespace

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  struct stat about = {};
  if (stat(path.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path,
                     "' is no file that can be read; make one with "
                     "(umask 077; openssl rand -hex 32 >",
                     path, ")"));
  }
  if ((about.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        "'", path, "' may be read by others than its owner; chmod 600 ", path));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(kLongest + 2, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  absl::StripAsciiWhitespace(&text);
  const auto is_fit = [](unsigned char c) { return c > 0x20 && c < 0x7f; };
  if (text.size() < kShortest || text.size() > kLongest ||
      !std::all_of(text.begin(), text.end(), is_fit)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", path, "' holds no token of ", kShortest, " to ", kLongest,
        " printable characters without blanks; make one with (umask 077; "
        "openssl rand -hex 32 >",
        path, ")"));
  }
  return text;
}

bool ShowsToken(absl::string_view header, absl::string_view token) {
  const size_t blank = header.find(' ');
  if (blank == header.npos) return false;
  const absl::string_view scheme = header.substr(0, blank);
  const absl::string_view rest =
      absl::StripAsciiWhitespace(header.substr(blank));
  if (absl::EqualsIgnoreCase(scheme, "bearer")) return IsSame(rest, token);
  std::string pair;
  if (!absl::EqualsIgnoreCase(scheme, "basic") ||
      !absl::Base64Unescape(rest, &pair)) {
    return false;
  }
  const size_t colon = pair.find(':');
  return colon != pair.npos &&
         IsSame(absl::string_view(pair).substr(colon + 1), token);
}

}  // namespace pactrain::coordinator
