// How many lines of the audit log each source may cause in ten minutes, so that
// none pushes out those of the others. What is above is left out and counted.
//
// A job takes of a source's at most as many as it leaves, which is half of what
// other jobs have left, and a few in any case: who has it cause lines in some
// jobs hides nothing of another one. A source's ten minutes begin with the
// first line that it causes. Beyond kMaxSources they share one source's, and
// beyond kMaxJobsOfOne its jobs share one job's.
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
  static constexpr size_t kMaxJobsOfOne = 50;
  static constexpr uint64_t kLinesOfAnyJob = 8;
  static constexpr absl::Duration kTime = absl::Minutes(10);

  enum class Word {
    kKept,
    kFirstLeftOut,  // Of the job in these ten minutes.
    kLeftOut,
  };
  struct LeftOut {
    protocol::Caller caller;  // Who caused the first of them.
    std::string job;
    absl::Duration since = absl::ZeroDuration();
    uint64_t lines = 0;
  };

  // Of `job`; "": of none. What is told at once, such as a generation with all
  // who join it, is kept or left out as a whole.
  Word Take(const protocol::Caller& caller, const std::string& job,
            uint64_t lines, absl::Duration now);
  // How many the job has left.
  uint64_t RoomOf(const protocol::Caller& caller, const std::string& job) const;
  // Of those whose ten minutes are over, which begin anew.
  std::vector<LeftOut> TakeOver(absl::Duration now);

 private:
  struct Job {
    uint64_t lines = 0;
    LeftOut left_out = {};
  };
  struct Source {
    absl::Duration since;
    uint64_t lines = 0;
    std::map<std::string, Job> jobs = {};

    // Whose budget is that of the job.
    std::string BudgetOf(const std::string& job) const;
    uint64_t RoomOf(const std::string& job) const;
  };
  // Whose budget is that of the source.
  std::string BudgetOf(const protocol::Caller& caller) const;

  std::map<std::string, Source> sources_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_DRIVER_LINE_BUDGET_H_
