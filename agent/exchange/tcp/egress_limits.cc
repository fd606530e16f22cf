#include "agent/exchange/tcp/egress_limits.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/rate.h"
#include "protocol/types.h"

namespace pactrain::agent {
namespace {

constexpr double kLeastEgressRate = 1e6 / 8;

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
  const auto rate = base::ParseRate(text.substr(equals + 1));
  if (!rate.ok()) return BadLimit(text, rate.status().message());
  if (*rate < kLeastEgressRate) {
    return BadLimit(text,
                    "the rate must be 1mbit or more, so that heartbeats pass "
                    "between two frames");
  }
  limit.bytes_per_second = *rate;
  return limit;
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

std::shared_ptr<base::TokenBucket> EgressLimits::ForSite(
    const std::string& site) {
  auto rate = rates_.find(site);
  if (rate == rates_.end() && site != own_site_) rate = rates_.find("*");
  if (rate == rates_.end()) return nullptr;
  std::shared_ptr<base::TokenBucket>& bucket = buckets_[site];
  if (bucket == nullptr) {
    bucket = std::make_shared<base::TokenBucket>(rate->second, kBurstBytes);
  }
  return bucket;
}

}  // namespace pactrain::agent
