// How many lines of the audit log each source may cause in ten minutes, so that
// none pushes out those of the others. What is above is left out and counted.
//
// A source's ten minutes begin with the first line that it causes. Beyond
// kMaxSources they share one source's.
//
// Pure: no clock. Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_DRIVER_LINE_BUDGET_H_
#define PACTRAIN_COORDINATOR_DRIVER_LINE_BUDGET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "protocol/audit.h"

namespace pactrain::coordinator {

// Whose refusals and lines are counted together: who has proven nothing has no
// name, and who holds the key of one job, and gives himself names, that key's.
std::string SourceOf(const protocol::Caller& caller);

class LineBudget {
 public:
  static constexpr uint64_t kMaxLinesOfOne = 1000;
  static constexpr size_t kMaxSources = 1000;
  static constexpr absl::Duration kTime = absl::Minutes(10);

  enum class Word {
    kKept,
    kFirstLeftOut,  // In these ten minutes.
    kLeftOut,
  };
  struct LeftOut {
    protocol::Caller caller;  // Who caused the first of them.
    absl::Duration since = absl::ZeroDuration();
    uint64_t lines = 0;
  };

  // What is told at once, such as a generation with all who join it, is kept or
  // left out as a whole.
  Word Take(const protocol::Caller& caller, uint64_t lines, absl::Duration now);
  // That were kept.
  uint64_t LinesOf(const protocol::Caller& caller) const;
  // Of those whose ten minutes are over, which begin anew.
  std::vector<LeftOut> TakeOver(absl::Duration now);

 private:
  struct Source {
    absl::Duration since;
    uint64_t lines = 0;
    LeftOut left_out = {};
  };
  std::map<std::string, Source> sources_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_DRIVER_LINE_BUDGET_H_
