// The Mask Tracker (PacTrain, section III-B): which weights of a model are
// zero, and for how many steps those have been the same ones.
//
// A step looks at a part of the elements, so that all are looked at once in
// `period` steps. Which part is a function of the number of steps since the
// start or Restart() alone: ranks with equal weights that began together find
// the same at the same step. A change starts the count
// of unchanged steps anew, and the period is no longer than settle_steps. So
// when settled() is true, every element was looked at since the last change.
//
//   for (i = 0; i < tracker.due().size(); ++i) tracker.Look(i, its values);
//   tracker.EndStep();  // When the step is committed.
//
// Pure. Thread-compatible. Owns its bitmaps, a bit for each element.
#ifndef PACTRAIN_TRAINER_CORE_MASK_TRACKER_H_
#define PACTRAIN_TRAINER_CORE_MASK_TRACKER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/membership_abi.h"

namespace pactrain::trainer {

class MaskTracker {
 public:
  static constexpr uint32_t kMaxPeriod = 4;
  static constexpr size_t kMaxText = 200;  // Bytes of Moved().

  struct Parameter {
    std::string name;
    uint64_t elements = 0;
  };
  // Elements that became zero, and that came back.
  struct Moves {
    uint64_t gone = 0;
    uint64_t back = 0;
    uint64_t all() const { return gone + back; }
  };

  // REQUIRES: settle_steps >= 1.
  MaskTracker(std::vector<Parameter> parameters, uint32_t settle_steps);

  // What this step has to look at: at first, and after Restart(), everything.
  const std::vector<pt_range>& due() const;
  // Compares range `index` of due() with its values. Twice is as good as once.
  // Returns how many elements moved; in the very first look none do.
  uint64_t Look(size_t index, const float* values);
  void EndStep();
  // The next step looks at everything and begins to count, as at the start.
  void Restart();

  // Since the last change that was seen.
  uint64_t steps_unchanged() const { return unchanged_; }
  uint64_t settle_steps() const { return settle_; }
  bool settled() const { return unchanged_ >= settle_; }
  uint64_t steps() const { return steps_; }  // Ended, but for the first look.
  // The step, counted from 1, that saw the last change; 0: none yet.
  uint64_t last_change() const { return last_change_; }

  // As they were when they were looked at: bit i % 64 of word i / 64 is 1 where
  // element i is not zero.
  std::span<const uint64_t> bits(uint32_t parameter) const {
    return tracked_[parameter].words;
  }
  const Moves& moves(uint32_t parameter) const {
    return tracked_[parameter].total;
  }
  // What moved since the masks were settled last, most first:
  // "layer3.0.conv1.weight 1,204, fc.weight 12 elements moved". At most
  // kMaxText bytes; empty: nothing.
  std::string Moved() const;

 private:
  struct Tracked {
    std::string name;
    std::vector<uint64_t> words;
    Moves total;
    uint64_t recent = 0;  // Since it was settled last.
  };

  uint64_t settle_;
  std::vector<Tracked> tracked_;
  std::vector<pt_range> all_;
  // One for each step of the period.
  std::vector<std::vector<pt_range>> parts_;
  bool all_due_ = true;
  bool first_ = true;  // Nothing is known yet, so nothing can change.
  bool changed_ = false;
  uint64_t steps_ = 0;
  uint64_t phase_ = 0;  // Steps since all was looked at.
  uint64_t unchanged_ = 0;
  uint64_t last_change_ = 0;
};

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_CORE_MASK_TRACKER_H_
