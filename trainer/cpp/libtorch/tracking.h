// Masks that somebody else makes: they are what is not zero in the weights.
//
// Ranks have equal weights, so each finds the same at the same step. While
// masks move this rank votes for the first sight of them with too few steps to
// count; then for what they are when they have settled.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_TRACKING_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_TRACKING_H_

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "trainer/cpp/libtorch/masks.h"
#include "trainer/cpp/libtorch/model.h"
#include "trainer/cpp/mask_keeper.h"
#include "trainer/cpp/mask_tracker.h"
#include "trainer/cpp/masks.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/types.h"

namespace pactrain::internal {

// Borrows table and parameters; used between steps.
class Tracking {
 public:
  // PacTrainError: out of memory.
  Tracking(const ParameterTable* table, const std::vector<NamedTensor>* trained,
           uint32_t settle_steps)
      : trained_(trained),
        tracker_(table, Candidates(*trained), settle_steps) {}

  // Before a step is submitted, at all ranks. True: the keeper is to have
  // masks(). What is seen first of a movement is voted for, and then only what
  // may have come back outside the masks in force, which have room for all that
  // was seen so far.
  bool Look(const MaskKeeper& keeper) {
    at::Tensor piece;
    const bool seen =
        tracker_.Look([&](size_t parameter, uint64_t first, uint64_t elements) {
          piece = Flat((*trained_)[parameter].tensor)
                      .narrow(0, static_cast<int64_t>(first),
                              static_cast<int64_t>(elements))
                      .to(at::kFloat);
          return piece.const_data_ptr<float>();
        });
    const bool held = keeper.active() != nullptr && keeper.inside();
    if (!seen || (looked_ && moving_ && !held)) return false;
    looked_ = moving_ = true;
    return true;
  }

  // The step that was looked at is committed: votes until masks have settled.
  void EndStep(MaskKeeper& keeper) {
    tracker_.EndStep();
    steps_moving_ = moving_ ? steps_moving_ + 1 : 0;
    if (!moving_) return;
    const TrackedMasks state = tracker_.state();
    moving_ = state.steps_unchanged < state.settle_steps;
    if (!moving_) keeper.Replace(tracker_.masks());
    constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
    keeper.VoteTracked(
        static_cast<uint32_t>(std::min(state.steps_unchanged, kMost)),
        state.moved);
  }

  // In another generation all is looked at anew.
  void Restart() {
    tracker_.Restart();
    moving_ = true;
    looked_ = false;
  }

  // Steps, until now, in which masks have not been the same for long enough.
  uint64_t steps_moving() const { return steps_moving_; }
  Digest News(bool always) const { return tracker_.News(always); }
  std::string MovedMost() const { return tracker_.MovedMost(); }
  MaskSet masks() const { return tracker_.masks(); }
  TrackedMasks state() const { return tracker_.state(); }

 private:
  // As those that may be pruned.
  static std::vector<size_t> Candidates(
      const std::vector<NamedTensor>& trained) {
    std::vector<size_t> indices;
    for (size_t i = 0; i < trained.size(); ++i) {
      if (!IsVector(trained[i].tensor)) indices.push_back(i);
    }
    return indices;
  }

  const std::vector<NamedTensor>* trained_;
  MaskTracker tracker_;
  bool moving_ = true;   // Not settled yet, or not any more.
  bool looked_ = false;  // Since the start, or Restart().
  uint64_t steps_moving_ = 0;
};

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_TRACKING_H_
