// What one mask set keeps of each parameter, for people: the largest parameters
// by name, all others together.
//
// Plain values. Thread-compatible.
#ifndef PACTRAIN_PROTOCOL_KEEP_BY_PARAMETER_H_
#define PACTRAIN_PROTOCOL_KEEP_BY_PARAMETER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"

namespace pactrain::protocol {

struct KeepByParameter {
  struct Parameter {
    std::string name;  // Printable ASCII, at most kMaxNameLength.
    uint64_t kept = 0;
    uint64_t elements = 0;
    bool operator==(const Parameter&) const = default;
  };
  base::Digest mask_digest;
  // In the model's order, at most kMaxKeepParameters.
  std::vector<Parameter> parameters;
  uint32_t others = 0;  // That are not named.
  uint64_t others_kept = 0;
  uint64_t others_elements = 0;
  bool operator==(const KeepByParameter&) const = default;
};

// `what` names the message. InvalidArgument: over a limit, no mask set, or more
// is kept than there is.
absl::Status CheckKeep(absl::string_view what, const KeepByParameter& keep);

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_KEEP_BY_PARAMETER_H_
