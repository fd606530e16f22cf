// The Mask Tracker of the trainer library (trainer/pactrain.h): which weights
// are zero, and for how many steps those have been the same ones. And how this
// rank votes for masks that somebody else makes: they are what is not zero in
// the weights.
//
// Ranks have equal weights, so each finds the same at the same step. While
// masks move this rank votes for the first sight of them with too few steps to
// count; then for what they are when they have settled.
//
// Owns the tracker. Thread-compatible: used between steps.
#ifndef PACTRAIN_TRAINER_CPP_MASK_TRACKER_H_
#define PACTRAIN_TRAINER_CPP_MASK_TRACKER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/mask_keeper.h"
#include "trainer/cpp/masks.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/types.h"
#include "trainer/pactrain.h"

namespace pactrain {

// Where masks are tracked: how far they have settled. Steps are of gradients.
struct TrackedMasks {
  uint64_t steps_unchanged = 0;  // Since the last change that was seen.
  uint64_t settle_steps = 0;     // Unchanged steps that make a vote count.
  uint64_t last_change = 0;      // The step, from 1, that saw it; 0: none did.
  // "fc.weight 12 elements moved", most first, since they were settled last.
  std::string moved = {};
};

namespace internal {

class MaskTracker {
 public:
  // Tracks `parameters`, indices into `table`, which is borrowed.
  // PacTrainError: out of memory.
  MaskTracker(const ParameterTable* table, std::vector<size_t> parameters,
              uint32_t settle_steps)
      : table_(table), parameters_(std::move(parameters)) {
    std::vector<const char*> names;
    std::vector<uint64_t> elements;
    for (const size_t i : parameters_) {
      names.push_back((*table_)[i].name.c_str());
      elements.push_back((*table_)[i].elements());
    }
    tracker_.reset(pt_tracker_new(static_cast<uint32_t>(parameters_.size()),
                                  names.data(), elements.data(), settle_steps));
    if (tracker_ == nullptr) {
      throw PacTrainError(
          "There is no memory to track masks, a bit for each weight.\n"
          "Give this process more memory, or declare the masks.");
    }
  }

  // Looks at what is due in this step. `values_of(parameter, first, elements)`
  // points to fp32 values of a parameter of the table, in any order that stays
  // the same. True: masks() has changed, or is known now.
  template <typename ValuesOf>
  bool Look(const ValuesOf& values_of) {
    uint64_t moved = 0;
    for (uint32_t i = 0; i < pt_tracker_due(tracker_.get()); ++i) {
      const pt_range range = pt_tracker_range(tracker_.get(), i);
      moved += pt_tracker_look(
          tracker_.get(), i,
          values_of(parameters_[range.parameter], range.first, range.elements));
    }
    has_news_ = has_news_ || moved > 0;
    const bool first = !std::exchange(looked_, true);
    return first || moved > 0;
  }

  // Look() before a step is submitted, at all ranks. True: the keeper is to
  // have masks(). What is seen first of a movement is voted for, and then only
  // what may have come back outside the masks in force, which have room for all
  // that was seen so far.
  template <typename ValuesOf>
  bool LookFor(const MaskKeeper& keeper, const ValuesOf& values_of) {
    const bool looked = looked_;
    const bool seen = Look(values_of);
    const bool held = keeper.active() != nullptr && keeper.inside();
    if (!seen || (looked && moving_ && !held)) return false;
    moving_ = true;
    return true;
  }

  // Of what was seen, if some of it has moved since the last committed step, or
  // `always`; else empty. Ranks are compared by it, Python's, too.
  Digest News(bool always) const {
    if (!has_news_ && !always) return {};
    std::string bits;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const std::vector<uint8_t> packed = Bits(i);
      bits.append(packed.begin(), packed.end());
    }
    return DigestOf(bits);
  }

  // The step is committed.
  void EndStep() {
    pt_tracker_end_step(tracker_.get());
    has_news_ = false;
  }

  // The same; votes until masks have settled.
  void EndStepFor(MaskKeeper& keeper) {
    EndStep();
    steps_moving_ = moving_ ? steps_moving_ + 1 : 0;
    if (!moving_) return;
    const TrackedMasks now = state();
    moving_ = now.steps_unchanged < now.settle_steps;
    if (!moving_) keeper.Replace(masks());
    constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();
    keeper.VoteTracked(
        static_cast<uint32_t>(std::min(now.steps_unchanged, kMost)), now.moved);
  }

  // In another generation all is looked at anew.
  void Restart() {
    pt_tracker_restart(tracker_.get());
    moving_ = true;
    looked_ = false;
  }

  // Steps, until now, in which masks have not been the same for long enough.
  uint64_t steps_moving() const { return steps_moving_; }

  TrackedMasks state() const {
    const pt_tracked state = pt_tracker_state(tracker_.get());
    std::string moved = pt_tracker_moved(tracker_.get());
    // A name may be anything, and pt_vote() takes what can be printed.
    std::replace_if(
        moved.begin(), moved.end(), [](char c) { return c < ' ' || c > '~'; },
        '?');
    return {.steps_unchanged = state.steps_unchanged,
            .settle_steps = state.settle_steps,
            .last_change = state.last_change,
            .moved = std::move(moved)};
  }

  // Of the whole run, in words: "fc.weight 1,204, conv.weight 12".
  std::string MovedMost() const {
    std::vector<std::pair<uint64_t, size_t>> most;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const uint64_t count =
          pt_tracker_moves(tracker_.get(), static_cast<uint32_t>(i));
      if (count > 0) most.emplace_back(count, parameters_[i]);
    }
    std::stable_sort(
        most.begin(), most.end(),
        [](const auto& a, const auto& b) { return a.first > b.first; });
    std::string text;
    for (size_t i = 0; i < std::min<size_t>(most.size(), kShown); ++i) {
      text += (i == 0 ? "" : ", ") + (*table_)[most[i].second].name + " " +
              WithCommas(most[i].first);
    }
    return text;
  }

  // As they were when they were looked at. A parameter that is all zero was not
  // pruned: it has not begun to learn.
  MaskSet masks() const {
    std::vector<Mask> masks(table_->size());
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const uint64_t elements = (*table_)[parameters_[i]].elements();
      const std::vector<uint8_t> bits = Bits(i);
      if (std::any_of(bits.begin(), bits.end(),
                      [](uint8_t byte) { return byte != 0; })) {
        masks[parameters_[i]] = Unpack(bits, elements);
      }
    }
    return MaskSet(*table_, std::move(masks));
  }

 private:
  static constexpr size_t kShown = 3;  // Parameters that MovedMost() names.

  // Of a tracked parameter, in whole words of 64.
  std::vector<uint8_t> Bits(size_t index) const {
    const uint64_t elements = (*table_)[parameters_[index]].elements();
    std::vector<uint8_t> bits((elements + 63) / 64 * 8);
    pt_tracker_bits(tracker_.get(), static_cast<uint32_t>(index), bits.data());
    return bits;
  }

  struct Free {
    void operator()(pt_tracker* tracker) const { pt_tracker_free(tracker); }
  };

  const ParameterTable* table_;
  const std::vector<size_t> parameters_;
  std::unique_ptr<pt_tracker, Free> tracker_;
  bool looked_ = false;    // Since the start, or Restart().
  bool has_news_ = false;  // Ranks have not been compared since it moved.
  bool moving_ = true;     // Not settled yet, or not any more.
  uint64_t steps_moving_ = 0;
};

}  // namespace internal
}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_MASK_TRACKER_H_
