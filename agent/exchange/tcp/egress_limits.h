// How fast an agent may send to each peer site: one bucket per site, shared by
// all connections to agents of that site.
//
// Thread-compatible.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_EGRESS_LIMITS_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_EGRESS_LIMITS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/token_bucket.h"

namespace pactrain::agent {

struct EgressLimit {
  // "*": every site but one's own that has no limit of its own.
  std::string site;
  double bytes_per_second = 0;
};

// "SITE=RATE", RATE as base::ParseRate() reads it, such as "eu=100mbit" or
// "*=1gbit". InvalidArgument: anything else.
absl::StatusOr<EgressLimit> ParseEgressLimit(absl::string_view text);

class EgressLimits {
 public:
  // What may leave at once after a pause: small, so that a limit looks like a
  // link.
  static constexpr uint64_t kBurstBytes = 32 << 10;

  // InvalidArgument: a site is named twice.
  static absl::StatusOr<EgressLimits> Create(
      const std::vector<EgressLimit>& limits, const std::string& own_site);

  // The bucket of a site, the same one at every call; nullptr: no limit. "*"
  // gives each site a bucket of its own.
  std::shared_ptr<base::TokenBucket> ForSite(const std::string& site);

 private:
  std::string own_site_;
  std::map<std::string, double> rates_;
  std::map<std::string, std::shared_ptr<base::TokenBucket>> buckets_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_EGRESS_LIMITS_H_
