// The options and the memory of torch's optimizers under the names that
// torch's Python optimizers give them in state_dict().
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_OPTIMIZER_FIELDS_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_OPTIMIZER_FIELDS_H_

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "trainer/cpp/state_value.h"

namespace pactrain::internal {

// One kind of optimizer. VisitOptions() and VisitState() call visit(name,
// reference) for each field. `fixed`: options that only Python's have, with the
// values that stand for what libtorch does.
struct SgdFields {
  using Optimizer = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr const char* kName = "SGD";

  template <typename Visit>
  static void VisitOptions(Options& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("momentum", options.momentum());
    visit("dampening", options.dampening());
    visit("weight_decay", options.weight_decay());
    visit("nesterov", options.nesterov());
  }
  template <typename Visit>
  static void VisitState(State& state, const Visit& visit) {
    visit("momentum_buffer", state.momentum_buffer());
  }
  static std::vector<StateItem> Fixed() {
    return {{"maximize", false}, {"differentiable", false}};
  }
};

template <typename Kind, typename KindOptions, typename KindState>
struct AdamLikeFields {
  using Optimizer = Kind;
  using Options = KindOptions;
  using State = KindState;

  template <typename Visit>
  static void VisitOptions(Options& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("betas", options.betas());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("amsgrad", options.amsgrad());
  }
  template <typename Visit>
  static void VisitState(State& state, const Visit& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit("max_exp_avg_sq", state.max_exp_avg_sq());
  }
  static std::vector<StateItem> FixedFor(bool decoupled_weight_decay) {
    return {{"maximize", false},
            {"differentiable", false},
            {"capturable", false},
            {"decoupled_weight_decay", decoupled_weight_decay}};
  }
};

struct AdamFields
    : AdamLikeFields<torch::optim::Adam, torch::optim::AdamOptions,
                     torch::optim::AdamParamState> {
  static constexpr const char* kName = "Adam";
  static std::vector<StateItem> Fixed() { return FixedFor(false); }
};

struct AdamWFields
    : AdamLikeFields<torch::optim::AdamW, torch::optim::AdamWOptions,
                     torch::optim::AdamWParamState> {
  static constexpr const char* kName = "AdamW";
  static std::vector<StateItem> Fixed() { return FixedFor(true); }
};

struct RmspropFields {
  using Optimizer = torch::optim::RMSprop;
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr const char* kName = "RMSprop";

  template <typename Visit>
  static void VisitOptions(Options& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("alpha", options.alpha());
    visit("eps", options.eps());
    visit("weight_decay", options.weight_decay());
    visit("momentum", options.momentum());
    visit("centered", options.centered());
  }
  template <typename Visit>
  static void VisitState(State& state, const Visit& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg());
    visit("momentum_buffer", state.momentum_buffer());
    visit("grad_avg", state.grad_avg());
  }
  static std::vector<StateItem> Fixed() {
    return {
        {"maximize", false}, {"differentiable", false}, {"capturable", false}};
  }
};

struct AdagradFields {
  using Optimizer = torch::optim::Adagrad;
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr const char* kName = "Adagrad";

  template <typename Visit>
  static void VisitOptions(Options& options, const Visit& visit) {
    visit("lr", options.lr());
    visit("lr_decay", options.lr_decay());
    visit("weight_decay", options.weight_decay());
    visit("initial_accumulator_value", options.initial_accumulator_value());
    visit("eps", options.eps());
  }
  template <typename Visit>
  static void VisitState(State& state, const Visit& visit) {
    visit("step", state.step());
    visit("sum", state.sum());
  }
  static std::vector<StateItem> Fixed() {
    return {{"maximize", false}, {"differentiable", false}};
  }
};

// Calls visit(Fields()) with the fields of this optimizer's kind; false: it is
// of another kind.
template <typename Visit>
bool VisitKind(const torch::optim::Optimizer& optimizer, const Visit& visit) {
  const auto try_kind = [&](auto fields) {
    using Kind = typename decltype(fields)::Optimizer;
    const bool is = dynamic_cast<const Kind*>(&optimizer) != nullptr;
    if (is) visit(fields);
    return is;
  };
  return try_kind(SgdFields()) || try_kind(AdamFields()) ||
         try_kind(AdamWFields()) || try_kind(RmspropFields()) ||
         try_kind(AdagradFields());
}

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_OPTIMIZER_FIELDS_H_
