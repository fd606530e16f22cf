// What a trainer says of its masks, in words that name the parameters.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_WARNINGS_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_WARNINGS_H_

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/cpp/config.h"
#include "trainer/cpp/libtorch/masks.h"
#include "trainer/cpp/libtorch/model.h"
#include "trainer/cpp/mask_tracker.h"
#include "trainer/cpp/masks.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/types.h"

namespace pactrain::internal {

// What was to be in force for step `step`, counted from 1, and is not; empty:
// nothing. `settled`: the masks are those that are wanted.
inline std::string MissedText(const AttachConfig& config, uint64_t step,
                              const Decision& next, bool settled) {
  const Onset onset = config.onset();
  std::string what;
  if (step == onset.pin_from &&
      (next.mode != onset.pin_mode || next.codec != onset.pin_codec)) {
    what = ModeText(onset.pin_mode, onset.pin_codec) + ", which is pinned,";
  } else if (step == config.activate_at && !settled) {
    what = "the masks";
  } else {
    return "";
  }
  return what + " did not come in force with step " + std::to_string(step) +
         ", as was asked for, so this run may not be equal to another one. In "
         "force is " +
         ModeText(next.mode, next.codec) + ": " + next.reason;
}

// Names of the parameters with gradients outside the masks.
inline std::string WithGradientsOutside(
    const MaskSet& masks, const ParameterTable& table,
    const std::vector<NamedTensor>& trained) {
  constexpr size_t kShown = 5;
  std::string names;
  size_t count = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    const at::Tensor& gradient = trained[i].tensor.grad();
    if (masks[i].empty() || !gradient.defined()) continue;
    const at::Tensor kept = MaskTensor(masks[i], table[i]);
    if (!gradient.ne(0).logical_and(~kept).any().item<bool>()) continue;
    if (++count > kShown) continue;
    names += (names.empty() ? "" : ", ") + table[i].name;
  }
  if (count > kShown) {
    names += " and " + std::to_string(count - kShown) + " more";
  }
  return names;
}

// `names` may be empty: the gradients are another rank's.
inline std::string DenseText(int steps, const std::string& names) {
  return "The last " + std::to_string(steps) +
         " steps sent all elements: gradients are not zero where weights are" +
         (names.empty() ? "" : ", in " + names) +
         ".\nThat is right if weights grow by them, or from zero. If the "
         "program always drops what they do, mask them in it, or set "
         "config.gse.";
}

inline std::string MovingText(uint64_t steps, const MaskTracker& tracker) {
  const std::string moved = tracker.MovedMost();
  return "Tracked masks have moved for " + std::to_string(steps) +
         " steps without being the same for " +
         std::to_string(tracker.state().settle_steps) +
         ", as config.settle asks for" +
         (moved.empty() ? "" : "; elements that moved most: " + moved) +
         ".\nPrune less often, or give a smaller config.settle.";
}

// `masked`: masks in force have room for those that are wanted.
inline std::string UnagreedText(uint64_t steps, const Decision& next,
                                bool masked) {
  return "The masks that this rank wants have not been agreed on for " +
         std::to_string(steps) +
         " steps: other ranks have others, or the coordinator is away. Until "
         "then " +
         (masked ? "those in force go on" : "every step sends all elements") +
         ". In force is " + ModeText(next.mode, next.codec) + ": " +
         next.reason + "\nChange masks at all ranks alike.";
}

// `text` is of an error that ended the session since ranks differ.
inline std::string DifferentText(const std::string& text, uint32_t rank,
                                 const MaskTracker& tracker) {
  const std::string moved = tracker.MovedMost();
  return text.substr(0, text.rfind('\n')) +
         "\nTracked masks are compared, too. Elements that have moved at "
         "rank " +
         std::to_string(rank) + ": " + (moved.empty() ? "none" : moved) +
         ".\nPrune on all ranks alike. Load the last checkpoint at all ranks "
         "and start them again.";
}

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_WARNINGS_H_
