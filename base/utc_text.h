// A moment as people and files read it: 2026-01-31T12:00:00Z.
#ifndef PACTRAIN_BASE_UTC_TEXT_H_
#define PACTRAIN_BASE_UTC_TEXT_H_

#include <string>

#include "absl/time/time.h"

namespace pactrain::base {

inline std::string UtcText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%SZ", time, absl::UTCTimeZone());
}

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_UTC_TEXT_H_
