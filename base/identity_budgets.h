// How much each identity may ask of a server: a store of turns that fills up
// again with time. Who has used up his is shut out for a while.
//
// An identity that asks for nothing for as long as its store takes to fill is
// forgotten. At most kMaxIdentities are remembered: beyond that the ones that
// are nearest to full are, and never one that is shut out.
//
// Pure: no clock. Thread-compatible.
#ifndef PACTRAIN_BASE_IDENTITY_BUDGETS_H_
#define PACTRAIN_BASE_IDENTITY_BUDGETS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace pactrain::base {

class IdentityBudgets {
 public:
  static constexpr size_t kMaxIdentities = 4096;

  struct Limits {
    std::string of;  // What is counted, for messages: "calls".
    std::string whose = "one identity";  // As well.
    int at_once = 0;                     // >= 1.
    double per_second = 0;               // > 0.
    absl::Duration shut_out = absl::ZeroDuration();
  };

  explicit IdentityBudgets(Limits limits) : limits_(std::move(limits)) {}

  // Takes so many turns; none: asks whether it is shut out. `*news`, if given:
  // whether it is from now on. ResourceExhausted: it has used up its turns, now
  // or a while ago; says what is allowed.
  absl::Status Take(const std::string& who, absl::Duration now,
                    bool* news = nullptr, uint64_t turns = 1);
  size_t size() const { return stores_.size(); }

 private:
  struct Store {
    double turns = 0;
    absl::Duration at = absl::ZeroDuration();  // Of `turns`.
    absl::Duration shut_until = absl::ZeroDuration();
  };

  double TurnsAt(const Store& store, absl::Duration now) const;
  // Forgets those that are full, or else one.
  void MakeRoom(absl::Duration now);

  const Limits limits_;
  std::map<std::string, Store> stores_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_IDENTITY_BUDGETS_H_
