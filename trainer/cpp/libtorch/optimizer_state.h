// The state of an optimizer in the form of Python's Optimizer.state_dict(), so
// that ranks in both languages can take it from each other.
//
// Known are torch's SGD, Adam, AdamW, RMSprop and Adagrad. What else a program
// steps can be shared as a Shared of its own.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_OPTIMIZER_STATE_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_OPTIMIZER_STATE_H_

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/libtorch/optimizer_fields.h"
#include "trainer/cpp/libtorch/state_tensors.h"
#include "trainer/cpp/shared.h"
#include "trainer/cpp/state_value.h"

namespace pactrain {
namespace internal {

using Betas = std::tuple<double, double>;

inline StateValue FieldValue(const std::string& name, const at::Tensor& value) {
  return ToState(value);
}
// Python's counts steps in a tensor of float32.
inline StateValue FieldValue(const std::string& name, int64_t value) {
  return ToState(at::scalar_tensor(value, at::kFloat));
}
inline StateValue FieldValue(const std::string& name, double value) {
  return value;
}
inline StateValue FieldValue(const std::string& name, bool value) {
  return value;
}
inline StateValue FieldValue(const std::string& name, const Betas& value) {
  return StateValue::Tuple({std::get<0>(value), std::get<1>(value)});
}

inline void SetField(const StateValue& from, at::Tensor& to) {
  to = from.is_none() ? at::Tensor() : FromState(from.AsTensor());
}
inline void SetField(const StateValue& from, int64_t& to) {
  if (std::holds_alternative<StateTensor>(from.variant())) {
    to = FromState(from.AsTensor()).to(at::kLong).item<int64_t>();
  } else {
    to = from.AsInt();
  }
}
inline void SetField(const StateValue& from, double& to) {
  to = from.AsNumber();
}
inline void SetField(const StateValue& from, bool& to) { to = from.AsBool(); }
inline void SetField(const StateValue& from, Betas& to) {
  const std::vector<StateValue>& parts = from.AsList();
  if (parts.size() != 2) {
    throw InvalidArgument(
        "betas are not two numbers.\nShare an Adam of torch.");
  }
  to = {parts[0].AsNumber(), parts[1].AsNumber()};
}

// One optimizer of the kind that `Fields` describe.
template <typename Fields>
class OptimizerState {
 public:
  using Options = typename Fields::Options;
  using State = typename Fields::State;

  explicit OptimizerState(torch::optim::Optimizer* optimizer)
      : optimizer_(optimizer) {}

  StateValue Give() const {
    StateValue states = StateValue::Dict();
    StateValue groups = StateValue::List();
    std::vector<StateValue> all;
    int64_t index = 0;
    for (auto& group : optimizer_->param_groups()) {
      std::vector<StateValue> indices;
      for (const at::Tensor& parameter : group.params()) {
        const auto found =
            optimizer_->state().find(parameter.unsafeGetTensorImpl());
        if (found != optimizer_->state().end()) {
          states.Add(index, StateOf(static_cast<State&>(*found->second)));
        }
        indices.push_back(index++);
      }
      all.push_back(
          GroupOf(static_cast<Options&>(group.options()), std::move(indices)));
    }
    return StateValue::Dict(
        {{"state", states},
         {"param_groups", StateValue::List(std::move(all))}});
  }

  void Take(const StateValue& from) const {
    const std::vector<StateValue>& groups = from.At("param_groups").AsList();
    CheckGroups(groups);
    const StateValue& states = from.At("state");
    int64_t index = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      auto& group = optimizer_->param_groups()[g];
      Fields::VisitOptions(static_cast<Options&>(group.options()),
                           [&](const char* name, auto& field) {
                             SetField(groups[g].At(name), field);
                           });
      for (const at::Tensor& parameter : group.params()) {
        TakeState(states.Find(index++), parameter);
      }
    }
  }

 private:
  static StateValue StateOf(State& state) {
    StateValue value = StateValue::Dict();
    Fields::VisitState(state, [&](const char* name, auto& field) {
      if constexpr (std::is_same_v<std::decay_t<decltype(field)>, at::Tensor>) {
        if (!field.defined()) return;
      }
      value.Add(name, FieldValue(name, field));
    });
    return value;
  }

  static StateValue GroupOf(Options& options, std::vector<StateValue> indices) {
    StateValue value = StateValue::Dict();
    Fields::VisitOptions(options, [&](const char* name, auto& field) {
      value.Add(name, FieldValue(name, field));
    });
    for (StateItem& item : Fields::Fixed()) {
      value.Add(std::move(item.key), std::move(item.value));
    }
    value.Add("foreach", {});
    value.Add("fused", {});
    value.Add("params", StateValue::List(std::move(indices)));
    return value;
  }

  // RefusedError: other parameters, or an option that libtorch does not have.
  void CheckGroups(const std::vector<StateValue>& groups) const {
    auto& mine = optimizer_->param_groups();
    bool fits = groups.size() == mine.size();
    for (size_t g = 0; fits && g < groups.size(); ++g) {
      fits = groups[g].At("params").AsList().size() == mine[g].params().size();
    }
    if (!fits) {
      throw RefusedError(std::string("The ") + Fields::kName +
                         " has other groups of parameters here than at the "
                         "rank that gives its state.\nGive it the same on all "
                         "ranks.");
    }
    for (const StateValue& group : groups) {
      for (const StateItem& fixed : Fields::Fixed()) {
        const StateValue* theirs = group.Find(fixed.key);
        if (theirs == nullptr || *theirs == fixed.value) continue;
        throw RefusedError(std::string("The ") + Fields::kName +
                           " of the rank that gives its state has " +
                           fixed.key.AsString() +
                           (fixed.value.AsBool() ? " off" : " on") +
                           ", which libtorch's does not know.\nLeave it as it "
                           "is by default.");
      }
    }
  }

  void TakeState(const StateValue* from, const at::Tensor& parameter) const {
    auto& states = optimizer_->state();
    void* key = parameter.unsafeGetTensorImpl();
    if (from == nullptr || from->AsDict().empty()) {
      states.erase(key);
      return;
    }
    auto state = std::make_unique<State>();
    Fields::VisitState(*state, [&](const char* name, auto& field) {
      const StateValue* value = from->Find(name);
      if (value != nullptr) SetField(*value, field);
    });
    states[key] = std::move(state);
  }

  torch::optim::Optimizer* optimizer_;
};

// "SGD"; of an unknown kind: "optimizer".
inline std::string OptimizerType(const torch::optim::Optimizer& optimizer) {
  std::string type = "optimizer";
  VisitKind(optimizer, [&](auto fields) { type = fields.kName; });
  return type;
}

// InvalidArgument: of an unknown kind.
inline StateValue GiveOptimizer(torch::optim::Optimizer& optimizer) {
  StateValue state;
  const bool known = VisitKind(optimizer, [&](auto fields) {
    state = OptimizerState<decltype(fields)>(&optimizer).Give();
  });
  if (known) return state;
  throw InvalidArgument(
      "The optimizer is none of torch's SGD, Adam, AdamW, RMSprop and Adagrad, "
      "whose states are known.\nShare its state as a Shared of your own.");
}

// REQUIRES: of a known kind.
// RefusedError: other groups, or options that libtorch does not have.
inline void TakeOptimizer(torch::optim::Optimizer& optimizer,
                          const StateValue& state) {
  VisitKind(optimizer, [&](auto fields) {
    OptimizerState<decltype(fields)>(&optimizer).Take(state);
  });
}

}  // namespace internal

// An optimizer, to be shared; it has to outlive the trainer.
// InvalidArgument: it is none of torch's SGD, Adam, AdamW, RMSprop and Adagrad.
inline Shared SharedOptimizer(std::string name,
                              torch::optim::Optimizer& optimizer) {
  internal::GiveOptimizer(optimizer);
  return {
      .name = std::move(name),
      .type = internal::OptimizerType(optimizer),
      .give = [&] { return internal::GiveOptimizer(optimizer); },
      .take =
          [&](const StateValue& s) { internal::TakeOptimizer(optimizer, s); },
      .moves_parameters = true,
      .object = &optimizer};
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_OPTIMIZER_STATE_H_
