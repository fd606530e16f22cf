#include "agent/exchange/tcp/egress_limits.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "protocol/types.h"

namespace pactrain::agent {
namespace {

struct Unit {
  absl::string_view suffix;
  double bits_per_second;
};
constexpr Unit kUnits[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};

absl::Status BadLimit(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "': ", why,
                   "; write SITE=RATE, such as eu=100mbit or *=1gbit"));
}

}  // namespace

absl::StatusOr<EgressLimit> ParseEgressLimit(absl::string_view text) {
  const size_t equals = text.find('=');
  if (equals == absl::string_view::npos) return BadLimit(text, "no '='");
  EgressLimit limit;
  limit.site = std::string(text.substr(0, equals));
  if (limit.site != "*" && !protocol::CheckName("site", limit.site).ok()) {
    return BadLimit(text, "the part before '=' is no site name");
  }
  absl::string_view number = text.substr(equals + 1);
  for (const Unit& unit : kUnits) {
    if (!absl::ConsumeSuffix(&number, unit.suffix)) continue;
    double value = 0;
    if (!absl::SimpleAtod(number, &value)) return BadLimit(text, "no number");
    limit.bytes_per_second = value * unit.bits_per_second / 8;
    // Written so that NaN is refused, too.
    if (!(limit.bytes_per_second >= 1e3 && limit.bytes_per_second <= 125e9)) {
      return BadLimit(text, "the rate must be 8kbit to 1000gbit");
    }
    return limit;
  }
  return BadLimit(text, "the rate has no unit kbit, mbit or gbit");
}

absl::StatusOr<EgressLimits> EgressLimits::Create(
    const std::vector<EgressLimit>& limits, const std::string& own_site) {
  EgressLimits result;
  result.own_site_ = own_site;
  for (const EgressLimit& limit : limits) {
    if (!result.rates_.emplace(limit.site, limit.bytes_per_second).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the limit of site '", limit.site, "' is given twice; give it once"));
    }
  }
  return result;
}

std::shared_ptr<TokenBucket> EgressLimits::ForSite(const std::string& site) {
  auto rate = rates_.find(site);
  if (rate == rates_.end() && site != own_site_) rate = rates_.find("*");
  if (rate == rates_.end()) return nullptr;
  std::shared_ptr<TokenBucket>& bucket = buckets_[site];
  if (bucket == nullptr) {
    bucket = std::make_shared<TokenBucket>(rate->second, kBurstBytes);
  }
  return bucket;
}

}  // namespace pactrain::agent
