#include "coordinator/core/reach.h"

#include "absl/strings/str_cat.h"
#include "protocol/reach.h"

namespace pactrain::coordinator {

std::optional<std::string> WhyNeitherDials(const Candidate& a,
                                           const Candidate& b) {
  using protocol::kNobodyDials;
  if (a.agent == b.agent || a.data_address != kNobodyDials ||
      b.data_address != kNobodyDials) {
    return std::nullopt;
  }
  return absl::StrCat(
      "agents '", a.agent, "' (site '", a.site, "') and '", b.agent,
      "' (site '", b.site,
      "') both have --advertise-address none, so neither can dial the other; "
      "give "
      "one of them an address that the other can dial (behind one NAT: the "
      "private one)");
}

}  // namespace pactrain::coordinator
