// Keeps weights outside the masks in force where they belong: at zero, or, for
// frozen parameters, at the values they had when the masks were agreed on.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_ENFORCEMENT_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_ENFORCEMENT_H_

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/libtorch/masks.h"
#include "trainer/cpp/libtorch/model.h"
#include "trainer/cpp/masks.h"
#include "trainer/cpp/parameters.h"

namespace pactrain::internal {

// Zeroes what the optimizer remembers of one parameter where it is not kept:
// otherwise momentum would go on moving pruned weights. Never a product, here
// and below: NaN times zero is NaN.
inline void MaskState(torch::optim::OptimizerParamState& state,
                      const at::Tensor& kept) {
  const auto apply = [&](at::Tensor& tensor) {
    if (tensor.defined()) tensor.masked_fill_(~kept, 0);
  };
  if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(&state)) {
    apply(sgd->momentum_buffer());
  } else if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&state)) {
    apply(adam->exp_avg());
    apply(adam->exp_avg_sq());
    apply(adam->max_exp_avg_sq());
  } else if (auto* adamw =
                 dynamic_cast<torch::optim::AdamWParamState*>(&state)) {
    apply(adamw->exp_avg());
    apply(adamw->exp_avg_sq());
    apply(adamw->max_exp_avg_sq());
  } else if (auto* rms =
                 dynamic_cast<torch::optim::RMSpropParamState*>(&state)) {
    apply(rms->square_avg());
    apply(rms->momentum_buffer());
    apply(rms->grad_avg());
  } else if (auto* ada =
                 dynamic_cast<torch::optim::AdagradParamState*>(&state)) {
    apply(ada->sum());
  }
}

// The weights of one model. The values of frozen ones are taken only where all
// ranks have equal weights and equal masks: otherwise ranks could hold on to
// different values. `trained` are the table's parameters; both are borrowed.
class Enforcement {
 public:
  Enforcement(const ParameterTable* table,
              const std::vector<NamedTensor>* trained)
      : table_(table), trained_(trained), values_(table->size()) {}

  // Takes values for masks that all ranks have, maybe not in force yet.
  void Agree(const MaskSet& masks) {
    if (agreed_.has_value() && masks.digest() == agreed_->digest()) return;
    agreed_ = masks;
    for (size_t i = 0; i < table_->size(); ++i) {
      values_[i] = masks.is_frozen(i) ? Weights(i).clone() : at::Tensor();
    }
  }

  // The masks that the values of frozen weights were taken for; null: none.
  const MaskSet* agreed() const {
    return agreed_.has_value() ? &*agreed_ : nullptr;
  }
  // Of a frozen parameter; else undefined.
  const at::Tensor& value(size_t index) const { return values_[index]; }

  // Goes on as another rank does, whose optimizers' states are masked already.
  // `values` are by parameter. Null masks: there are none.
  void Resume(std::optional<MaskSet> agreed, std::vector<at::Tensor> values,
              const MaskSet* active,
              std::vector<const torch::optim::Optimizer*> optimizers) {
    entries_.clear();
    if (active != nullptr) Activate(*active);
    agreed_ = std::move(agreed);
    values_ = std::move(values);
    cleaned_ = std::move(optimizers);
  }

  // From now on none are.
  void Deactivate() { entries_.clear(); }

  // From now on these masks are enforced.
  void Activate(const MaskSet& masks) {
    Agree(masks);
    entries_.clear();
    cleaned_.clear();
    for (size_t i = 0; i < table_->size(); ++i) {
      if (masks[i].empty()) continue;
      entries_.push_back(
          {.index = i, .kept = MaskTensor(masks[i], (*table_)[i])});
    }
  }

  // Zeroes what a FULL step brought outside the masks in force.
  void MaskGradients() {
    for (const Entry& entry : entries_) {
      at::Tensor parameter = (*trained_)[entry.index].tensor;
      parameter.mutable_grad().masked_fill_(~entry.kept, 0);
    }
  }

  // After optimizer.step(). The first time since Activate() also zeroes the
  // optimizer's state outside the masks.
  void Apply(torch::optim::Optimizer& optimizer) {
    for (const Entry& entry : entries_) {
      at::Tensor weights = Weights(entry.index);
      if (const at::Tensor& values = values_[entry.index]; values.defined()) {
        weights.copy_(at::where(entry.kept, weights, values));
      } else {
        weights.masked_fill_(~entry.kept, 0);
      }
    }
    if (std::find(cleaned_.begin(), cleaned_.end(), &optimizer) !=
        cleaned_.end()) {
      return;
    }
    cleaned_.push_back(&optimizer);
    for (const Entry& entry : entries_) {
      auto& state = optimizer.state();
      const auto found =
          state.find((*trained_)[entry.index].tensor.unsafeGetTensorImpl());
      if (found != state.end()) MaskState(*found->second, entry.kept);
    }
  }

  // Weights outside their mask that are neither zero nor frozen.
  uint64_t CountOutside(const MaskSet& masks, size_t index) const {
    if (masks[index].empty() || masks.is_frozen(index)) return 0;
    const at::Tensor kept = MaskTensor(masks[index], (*table_)[index]);
    return static_cast<uint64_t>(
        Weights(index).ne(0).logical_and(~kept).sum().item<int64_t>());
  }

  // PacTrainError: there are such weights.
  void Check(const MaskSet& masks) const {
    for (size_t i = 0; i < table_->size(); ++i) {
      const uint64_t count = CountOutside(masks, i);
      if (count == 0) continue;
      throw PacTrainError(
          (*table_)[i].name + " has " + WithCommas(count) +
          " non-zero weights outside its mask: weights were "
          "loaded after pruning.\nPrune after loading, and give the masks "
          "that come of it; of weights that were pruned before, give "
          "MasksOfZeros(model).");
    }
  }

 private:
  struct Entry {
    size_t index = 0;
    at::Tensor kept = {};  // Bools.
  };

  at::Tensor Weights(size_t index) const {
    return (*trained_)[index].tensor.detach();
  }

  const ParameterTable* table_;
  const std::vector<NamedTensor>* trained_;
  std::optional<MaskSet> agreed_;
  std::vector<at::Tensor> values_;  // By parameter; undefined: not frozen.
  std::vector<Entry> entries_;
  std::vector<const torch::optim::Optimizer*> cleaned_;  // Since Activate().
};

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_ENFORCEMENT_H_
