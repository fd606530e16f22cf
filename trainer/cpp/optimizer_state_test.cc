// The states of libtorch's optimizers, given and taken.
#include "trainer/cpp/libtorch/optimizer_state.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/cpp/libtorch/shared_objects.h"

namespace pactrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void Step(torch::optim::Optimizer& optimizer, at::Tensor& weights) {
  weights.mutable_grad() = at::ones_like(weights);
  optimizer.step();
}

TEST(SharedOptimizerTest, AnotherRanksGoesOnAsItDoes) {
  at::Tensor mine = at::ones({2}).set_requires_grad(true);
  at::Tensor theirs = at::ones({2}).set_requires_grad(true);
  torch::optim::Adam here({mine}, torch::optim::AdamOptions(0.5));
  torch::optim::Adam there({theirs}, torch::optim::AdamOptions(0.25));
  for (int i = 0; i < 3; ++i) Step(there, theirs);
  SharedOptimizer("adam", here).take(SharedOptimizer("adam", there).give());
  mine.detach().copy_(theirs.detach());
  Step(here, mine);
  Step(there, theirs);
  EXPECT_TRUE(mine.equal(theirs));
}

TEST(SharedOptimizerTest, WithoutASteppedParameterThereIsNoState) {
  at::Tensor weights = at::ones({2}).set_requires_grad(true);
  torch::optim::SGD optimizer({weights},
                              torch::optim::SGDOptions(1).momentum(1));
  const Shared shared = SharedOptimizer("optimizer", optimizer);
  EXPECT_EQ(shared.type, "torch::optim::SGD");
  const std::string before = shared.give();
  Step(optimizer, weights);
  EXPECT_EQ(optimizer.state().size(), 1u);
  shared.take(before);
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(SharedOptimizerTest, OtherGroupsAreRefusedAndItsOwnStateStays) {
  at::Tensor weights = at::ones({2}).set_requires_grad(true);
  at::Tensor bias = at::ones({2}).set_requires_grad(true);
  torch::optim::Adam one(std::vector<at::Tensor>{weights});
  torch::optim::Adam two(std::vector<at::Tensor>{weights, bias});
  Step(one, weights);
  const Shared shared = SharedOptimizer("optimizer", one);
  EXPECT_THROW(shared.take(SharedOptimizer("b", two).give()), RefusedError);
  EXPECT_EQ(one.state().size(), 1u);
}

// A peer must not be able to run anything here.
TEST(SharedOptimizerTest, AStateWithCodeIsNotTaken) {
  at::Tensor weights = at::ones({2}).set_requires_grad(true);
  torch::optim::SGD optimizer(std::vector<at::Tensor>{weights}, 1.0);
  torch::jit::Module module("m");
  module.define("def forward(self, x: Tensor):\n    return x\n");
  std::ostringstream stream;
  module.save(stream);
  try {
    SharedOptimizer("optimizer", optimizer).take(stream.str());
    FAIL() << "it was taken";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("came with code in "));
  }
}

class OfOnesOwn : public torch::optim::Optimizer {
 public:
  using Optimizer::Optimizer;
  at::Tensor step(LossClosure closure = nullptr) override { return {}; }
};

TEST(SharedOptimizerTest, OneThatDoesNotSaveItsStateIsRefused) {
  OfOnesOwn optimizer(std::vector<torch::optim::OptimizerParamGroup>{},
                      std::make_unique<torch::optim::SGDOptions>(1.0));
  EXPECT_THROW(SharedOptimizer("optimizer", optimizer), InvalidArgument);
}

class SharedObjectsTest : public ::testing::Test {
 protected:
  at::Tensor weights_ = at::ones({2}).set_requires_grad(true);
  at::Tensor others_ = at::ones({2}).set_requires_grad(true);
  torch::optim::SGD named_{std::vector<at::Tensor>{weights_}, 0.5};
  torch::optim::SGD unnamed_{std::vector<at::Tensor>{weights_}, 0.25};
  torch::optim::SGD foreign_{std::vector<at::Tensor>{others_}, 0.125};
  int64_t step_ = 3;
  internal::SharedObjects objects_{
      {SharedOptimizer("sgd", named_),
       SharedNumbers("place", "Place", {{"step", &step_}})},
      {{"w", weights_}}};

  double rate() const { return named_.param_groups()[0].options().get_lr(); }
};

TEST_F(SharedObjectsTest, OptimizersThatMoveTheModelAreSeen) {
  for (torch::optim::SGD* sgd : {&unnamed_, &named_, &foreign_, &unnamed_}) {
    objects_.See(*sgd);
  }
  EXPECT_EQ(objects_.text(), "place (Place), sgd (torch::optim::SGD)");
  EXPECT_THAT(objects_.optimizers(), ElementsAre(&named_, &unnamed_));
}

TEST_F(SharedObjectsTest, TheProgramsOwnThingsCanBeLeftAlone) {
  const std::vector<uint8_t> state = objects_.Give();
  step_ = 9;
  named_.param_groups()[0].options().set_lr(0.75);
  objects_.Take(objects_.Parse(state, true), true);
  EXPECT_EQ(step_, 9);
  EXPECT_EQ(rate(), 0.5);
  objects_.Take(objects_.Parse(state, false), false);
  EXPECT_EQ(step_, 3);
}

TEST_F(SharedObjectsTest, WhatOneDoesNotTakeChangesNoOther) {
  bool takes = false;
  const internal::SharedObjects odd(
      {SharedOptimizer("sgd", named_),
       {.name = "z",
        .type = "Odd",
        .give = [] { return ""; },
        .take =
            [&](const std::string&) {
              if (!takes) throw InvalidArgument("it is odd.\nMend it.");
            }}},
      {{"w", weights_}});
  const std::vector<uint8_t> state = odd.Give();
  named_.param_groups()[0].options().set_lr(0.75);
  EXPECT_THROW(odd.Take(odd.Parse(state, false), false), InvalidArgument);
  EXPECT_EQ(rate(), 0.75);
  takes = true;
  odd.Take(odd.Parse(state, false), false);
  EXPECT_EQ(rate(), 0.5);
}

TEST_F(SharedObjectsTest, UnnamedOptimizersHaveToMatch) {
  const std::vector<uint8_t> state = objects_.Give();
  objects_.See(unnamed_);
  EXPECT_NO_THROW(objects_.Take(objects_.Parse(state, true), true));
  EXPECT_THROW(objects_.Parse(state, false), RefusedError);
}

TEST_F(SharedObjectsTest, ANameIsThereOnce) {
  EXPECT_THROW(internal::SharedObjects({SharedOptimizer("sgd", named_),
                                        SharedOptimizer("sgd", unnamed_)},
                                       {}),
               InvalidArgument);
}

}  // namespace
}  // namespace pactrain
