// What a program shares, and the optimizers that move its model.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_SHARED_OBJECTS_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_SHARED_OBJECTS_H_

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/libtorch/model.h"
#include "trainer/cpp/libtorch/optimizer_state.h"
#include "trainer/cpp/shared.h"
#include "trainer/cpp/state_value.h"

namespace pactrain::internal {

// Optimizers are seen when they step. Those that are not shared by name can be
// matched between ranks that have run the same program from the start, in the
// order of their first steps, but not with a newcomer's.
//
// Borrows all optimizers. Thread-compatible.
class SharedObjects {
 public:
  // InvalidArgument: two things of one name, or one that cannot be sent.
  SharedObjects(std::vector<Shared> shared, std::vector<NamedTensor> trained)
      : shared_(std::move(shared)), trained_(std::move(trained)) {
    std::sort(shared_.begin(), shared_.end(),
              [](const Shared& a, const Shared& b) { return a.name < b.name; });
    for (size_t i = 0; i < shared_.size(); ++i) {
      const Shared& item = shared_[i];
      const bool twice = i > 0 && shared_[i - 1].name == item.name;
      if (twice || !item.give || !item.take) {
        throw InvalidArgument(
            "What is shared as '" + item.name + "' " +
            (twice ? "is there twice" : "lacks give or take") +
            ".\nGive each thing a name of its own, and both functions.");
      }
      EncodeState(item.give());
    }
  }

  // Ascending.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Shared& item : shared_) names.push_back(item.name);
    return names;
  }

  size_t unnamed() const { return unnamed_.size(); }

  // Those that are shared first.
  std::vector<const torch::optim::Optimizer*> optimizers() const {
    std::vector<const torch::optim::Optimizer*> all;
    for (const Shared& item : shared_) {
      if (item.moves_parameters && item.object != nullptr) {
        all.push_back(static_cast<const torch::optim::Optimizer*>(item.object));
      }
    }
    all.insert(all.end(), unnamed_.begin(), unnamed_.end());
    return all;
  }

  // Before or after a step of this optimizer.
  void See(torch::optim::Optimizer& optimizer) {
    const auto known = optimizers();
    if (std::find(known.begin(), known.end(), &optimizer) == known.end() &&
        Moves(optimizer)) {
      unnamed_.push_back(&optimizer);
    }
  }

  StateValue Give() const {
    StateValue named = StateValue::Dict();
    StateValue types = StateValue::Dict();
    std::vector<StateValue> unnamed;
    for (const Shared& item : shared_) {
      named.Add(item.name, item.give());
      types.Add(item.name, item.type);
    }
    for (torch::optim::Optimizer* optimizer : unnamed_) {
      unnamed.push_back(GiveOptimizer(*optimizer));
    }
    return StateValue::Dict({{"named", named},
                             {"classes", types},
                             {"unnamed", StateValue::List(unnamed)}});
  }

  // RefusedError: something is of another type there, whose state it could not
  // take; names both.
  void Check(const StateValue& state) const {
    const StateValue& types = state.At("classes");
    for (const Shared& item : shared_) {
      const std::string& theirs = types.At(item.name).AsString();
      if (theirs == item.type) continue;
      throw RefusedError("What is shared as " + item.name + " is of class " +
                         item.type + " here, and " + theirs +
                         " at the rank that gives its state.\n"
                         "Share objects of the same classes on all ranks.");
    }
  }

  // What Give() returned at another rank with equal names.
  // RefusedError: there are other unnamed optimizers here than there.
  void Take(const StateValue& state, bool optimizers_only) const {
    const std::vector<StateValue>& unnamed = state.At("unnamed").AsList();
    const bool fits = unnamed.size() == unnamed_.size();
    if (!fits && !optimizers_only) {
      throw RefusedError("This rank has trained with " +
                         std::to_string(unnamed_.size()) +
                         " optimizers that are not shared, the rank that gives "
                         "its state with " +
                         std::to_string(unnamed.size()) +
                         ", so that their states cannot be matched.\nShare the "
                         "optimizers on all ranks.");
    }
    for (const Shared& item : shared_) {
      if (item.moves_parameters || !optimizers_only) {
        item.take(state.At("named").At(item.name));
      }
    }
    for (size_t i = 0; fits && i < unnamed_.size(); ++i) {
      TakeOptimizer(*unnamed_[i], unnamed[i]);
    }
  }

 private:
  bool Moves(torch::optim::Optimizer& optimizer) const {
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const auto is = [&](const NamedTensor& item) {
          return item.tensor.is_same(parameter);
        };
        if (std::any_of(trained_.begin(), trained_.end(), is)) return true;
      }
    }
    return false;
  }

  std::vector<Shared> shared_;
  const std::vector<NamedTensor> trained_;
  std::vector<torch::optim::Optimizer*> unnamed_;  // The first step first.
};

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_SHARED_OBJECTS_H_
