// What a rank counts in steps, and has in common with the others.
#ifndef PACTRAIN_TRAINER_CPP_STEP_CLOCK_H_
#define PACTRAIN_TRAINER_CPP_STEP_CLOCK_H_

#include <algorithm>
#include <cstdint>

#include "trainer/pactrain.h"

namespace pactrain {

using Progress = pt_progress;  // How far a rank is.

namespace internal {

// Says when buffers are to be synchronised and parameters compared. `step` is
// the session's next one. Thread-compatible.
class StepClock {
 public:
  void Start(uint64_t step) { last_buffer_sync_ = last_check_ = step; }

  // In another generation, where all ranks are as far as the donor.
  void Renew(const Progress& donors, uint64_t step) {
    committed_ = donors.committed;
    last_buffer_sync_ = step - std::min(step, donors.buffer_sync_age);
    last_check_ = step - std::min(step, donors.parameter_check_age);
    check_next_ = true;
  }

  Progress ProgressAt(uint64_t step) const {
    return {committed_, Age(step, last_buffer_sync_), Age(step, last_check_)};
  }

  void Committed() { ++committed_; }
  uint64_t committed() const { return committed_; }

  // True if parameters are to be compared in this step; says so once.
  bool TakeParameterCheck(uint64_t step, uint32_t interval) {
    if (!check_next_ && Age(step, last_check_) < interval) return false;
    check_next_ = false;
    last_check_ = step;
    return true;
  }

  bool BufferSyncDue(uint64_t step, uint32_t interval) const {
    return interval > 0 && Age(step, last_buffer_sync_) >= interval;
  }
  void BuffersSynced(uint64_t step) { last_buffer_sync_ = step; }

 private:
  static uint64_t Age(uint64_t step, uint64_t since) {
    return step - std::min(step, since);
  }

  uint64_t committed_ = 0;
  uint64_t last_buffer_sync_ = 0;
  uint64_t last_check_ = 0;
  bool check_next_ = true;
};

}  // namespace internal
}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_STEP_CLOCK_H_
