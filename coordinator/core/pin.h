// An operator's word on what travels.
#ifndef PACTRAIN_COORDINATOR_CORE_PIN_H_
#define PACTRAIN_COORDINATOR_CORE_PIN_H_

#include <string>

#include "absl/status/status.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

// What an operator wants to travel, whatever the policy says.
struct Pin {
  protocol::Mode mode = protocol::Mode::kFull;
  protocol::Codec codec = protocol::Codec::kFp32;
  bool operator==(const Pin&) const = default;
  // Does `decision` do what is pinned?
  bool IsMetBy(const protocol::Decision& decision) const;
  std::string ToString() const;  // "TERNARY 7 levels"
};
// InvalidArgument: TERNARY goes with n levels, FULL and COMPACTED with fp32 or
// bf16.
absl::Status CheckPin(const Pin& pin);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_PIN_H_
