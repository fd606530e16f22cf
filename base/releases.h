// Which releases of the daemons work beside each other.
//
// A release is MAJOR.MINOR.PATCH. Neighbours have the same MAJOR, and MINOR
// numbers that are at most 1 apart: a job trains on while its daemons are
// changed from one to the other, one by one (docs/upkeep.md). Tried with the
// release that tools/previous_release names.
//
// Pure functions.
#ifndef PACTRAIN_BASE_RELEASES_H_
#define PACTRAIN_BASE_RELEASES_H_

#include <string>

#include "absl/strings/string_view.h"

namespace pactrain::base {

enum class Releases {
  kSame,
  kNeighbours,
  kFarApart,
  kUnknown,  // They differ, and one is no release's: "my-build".
};

Releases CompareReleases(absl::string_view one, absl::string_view other);

// Of two that differ and are not kFarApart: what becomes of them, and what to
// do.
std::string BesideText(absl::string_view one, absl::string_view other);

// Of two that are kFarApart: why they are refused, and what to do.
std::string FarApartText(absl::string_view one, absl::string_view other);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_RELEASES_H_
