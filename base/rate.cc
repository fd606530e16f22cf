#include "base/rate.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace pactrain::base {
namespace {

struct Unit {
  absl::string_view suffix;
  double bits_per_second;
};
constexpr Unit kUnits[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};

}  // namespace

absl::StatusOr<double> ParseRate(absl::string_view text) {
  for (const Unit& unit : kUnits) {
    absl::string_view number = text;
    if (!absl::ConsumeSuffix(&number, unit.suffix)) continue;
    double value = 0;
    if (!absl::SimpleAtod(number, &value)) {
      return absl::InvalidArgumentError("no number");
    }
    const double bytes_per_second = value * unit.bits_per_second / 8;
    // Written so that NaN is refused, too.
    if (!(bytes_per_second >= 1e3 && bytes_per_second <= 125e9)) {
      return absl::InvalidArgumentError("the rate must be 8kbit to 1000gbit");
    }
    return bytes_per_second;
  }
  return absl::InvalidArgumentError("the rate has no unit kbit, mbit or gbit");
}

std::string RateText(double bytes_per_second) {
  const double bits = 8 * bytes_per_second;
  const Unit& unit = bits >= 1e9   ? kUnits[2]
                     : bits >= 1e6 ? kUnits[1]
                                   : kUnits[0];
  return absl::StrCat(bits / unit.bits_per_second, unit.suffix);
}

}  // namespace pactrain::base
