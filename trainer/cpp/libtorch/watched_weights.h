// Whether somebody has written weights since they were masked: a checkpoint
// that was loaded, or an optimizer after which nobody called ApplyMasks().
//
// No hook tells of that, and the next ApplyMasks() would set to zero what was
// loaded. So a few weights of each masked parameter are looked at before each
// step: outside the mask they have to be what they were; inside of it, zeros
// that were none are masks that nobody has declared.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_WATCHED_WEIGHTS_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_WATCHED_WEIGHTS_H_

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/libtorch/model.h"
#include "trainer/cpp/masks.h"
#include "trainer/cpp/parameters.h"

namespace pactrain::internal {

// Of one model; the parameters are borrowed. Used between steps.
class WatchedWeights {
 public:
  explicit WatchedWeights(const std::vector<NamedTensor>* trained)
      : trained_(trained) {}

  // Weights are as they have to be with these masks.
  void Take(const MaskSet& masks) {
    if (masks.empty()) return Forget();
    if (masks.digest() != digest_) Choose(masks);
    for (Watched& watched : watched_) {
      watched.outside = Values(watched, watched.places_outside);
      watched.inside = Values(watched, watched.places_inside);
    }
  }

  void Forget() {
    watched_.clear();
    digest_ = Digest();
  }

  // Before anything is masked again.
  // RefusedError: weights outside the masks are others than Take() saw.
  void Check() const {
    for (const Watched& watched : watched_) {
      const at::Tensor now = Values(watched, watched.places_outside);
      if (IsSame(now, watched.outside)) continue;
      throw RefusedError(
          Name(watched) +
          " has other weights outside its mask than the last step left: they "
          "were loaded since, or moved by an optimizer without ApplyMasks() "
          "after it, and would be lost.\nLoad weights before the TorchTrainer "
          "is made, and give it MasksOfZeros(model) if they were pruned; call "
          "ApplyMasks(optimizer) after each step of an optimizer.");
    }
  }

  // What a checkpoint that was pruned more has brought; once. Empty: nothing.
  std::string TakeNewZeros() {
    for (Watched& watched : watched_) {
      const at::Tensor now = Values(watched, watched.places_inside);
      const int64_t zeros =
          now.eq(0).logical_and(watched.inside.ne(0)).sum().item<int64_t>();
      watched.inside = now;
      if (zeros == 0 || zeros * kNotable < now.numel()) continue;
      return Name(watched) +
             " has zeros inside its mask that the last step did not leave: "
             "they train back.\nTo keep them, call "
             "SetMasks(MasksOfZeros(model)) on all ranks.";
    }
    return "";
  }

 private:
  static constexpr int64_t kMost = 512;  // Weights, inside and outside.
  // One in so many is no chance: as in pactrain/zeros.py.
  static constexpr int64_t kNotable = 100;

  struct Watched {
    size_t index = 0;
    at::Tensor places_outside, places_inside;  // In the order in memory.
    at::Tensor outside, inside;                // Their values.
  };

  void Choose(const MaskSet& masks) {
    Forget();
    for (size_t i = 0; i < trained_->size(); ++i) {
      if (masks[i].empty()) continue;
      watched_.push_back({.index = i,
                          .places_outside = Places(masks[i], 0),
                          .places_inside = Places(masks[i], 1),
                          .outside = {},
                          .inside = {}});
    }
    digest_ = masks.digest();
  }

  // Spread evenly over all that are there.
  static at::Tensor Places(const Mask& mask, uint8_t value) {
    const int64_t all = std::count(mask.begin(), mask.end(), value);
    const int64_t every = std::max<int64_t>(1, (all + kMost - 1) / kMost);
    std::vector<int64_t> places;
    int64_t seen = 0;
    for (size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] != value || seen++ % every != 0) continue;
      places.push_back(static_cast<int64_t>(i));
    }
    return at::tensor(places, at::kLong);
  }

  at::Tensor Values(const Watched& watched, const at::Tensor& places) const {
    const at::NoGradGuard no_grad;
    return Flat((*trained_)[watched.index].tensor.detach())
        .index_select(0, places);
  }

  // A value that is held may be no number; a zero may have either sign.
  static bool IsSame(const at::Tensor& a, const at::Tensor& b) {
    if (at::equal(a, b)) return true;
    const auto left = BytesOf(a);
    const auto right = BytesOf(b);
    return std::equal(left.begin(), left.end(), right.begin(), right.end());
  }

  const std::string& Name(const Watched& watched) const {
    return (*trained_)[watched.index].name;
  }

  const std::vector<NamedTensor>* trained_;
  std::vector<Watched> watched_;
  Digest digest_;  // Of the masks.
};

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_WATCHED_WEIGHTS_H_
