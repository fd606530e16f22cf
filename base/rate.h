// How fast a link is, as people write it.
#ifndef PACTRAIN_BASE_RATE_H_
#define PACTRAIN_BASE_RATE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pactrain::base {

// Bytes per second of a number with kbit, mbit or gbit (per second, powers of
// ten), such as "100mbit". InvalidArgument: says why `text` is none, or that it
// is below 8 kbit or over 1000 gbit.
absl::StatusOr<double> ParseRate(absl::string_view text);

// "100mbit", "1.5gbit".
std::string RateText(double bytes_per_second);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_RATE_H_
