// How many ranks each identity may bring, and how much an operator may change:
// each is written, and told to all.
//
// Pure: no clock. Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_DRIVER_CALLER_BUDGETS_H_
#define PACTRAIN_COORDINATOR_DRIVER_CALLER_BUDGETS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/identity_budgets.h"
#include "protocol/audit.h"

namespace pactrain::coordinator {

class CallerBudgets {
 public:
  CallerBudgets();

  // Ranks that an agent brings anew. Plain text knows no identities.
  //   ResourceExhausted: too many, names the agent and what is allowed.
  absl::Status TakeJoins(const protocol::Caller& caller, uint64_t joins,
                         absl::Duration now);
  // One thing that an operator does; those without a name are one.
  //   ResourceExhausted: too many, names the operator and what is allowed.
  absl::Status TakeChange(const protocol::Caller& caller, absl::Duration now);

 private:
  base::IdentityBudgets joins_, joins_of_keys_, changes_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_DRIVER_CALLER_BUDGETS_H_
