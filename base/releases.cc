#include "base/releases.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace pactrain::base {
namespace {

// MAJOR and MINOR; what follows them never keeps releases apart.
std::optional<std::pair<uint32_t, uint32_t>> Read(absl::string_view version) {
  const std::vector<absl::string_view> parts = absl::StrSplit(version, '.');
  uint32_t major = 0, minor = 0;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[0], &major) ||
      !absl::SimpleAtoi(parts[1], &minor)) {
    return std::nullopt;
  }
  return std::pair(major, minor);
}

}  // namespace

Releases CompareReleases(absl::string_view one, absl::string_view other) {
  if (one == other && !one.empty()) return Releases::kSame;
  const auto a = Read(one), b = Read(other);
  if (!a || !b) return Releases::kUnknown;
  const uint32_t apart =
      a->second > b->second ? a->second - b->second : b->second - a->second;
  return a->first == b->first && apart <= 1 ? Releases::kNeighbours
                                            : Releases::kFarApart;
}

std::string BesideText(absl::string_view one, absl::string_view other) {
  return CompareReleases(one, other) == Releases::kNeighbours
             ? "neighbours work together; finish the upgrade"
             : "they cannot be compared; install the same release everywhere";
}

std::string FarApartText(absl::string_view one, absl::string_view other) {
  return absl::StrCat(
      "only neighbouring releases work together (the same number before the "
      "first dot, at most 1 apart behind it): bring both to ",
      Read(one) < Read(other) ? other : one,
      ", where a job is to train on by one release after the other");
}

}  // namespace pactrain::base
