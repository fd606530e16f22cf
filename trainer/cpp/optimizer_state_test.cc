// The states of libtorch's optimizers, against those of torch's Python
// optimizers of equal names (testdata/optimizers.txt: each after two steps on
// one parameter, and that parameter before and after a third, whose gradients
// are ones).
#include "trainer/cpp/libtorch/optimizer_state.h"

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/cpp/libtorch/shared_objects.h"

namespace pactrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

StateValue FromPython(const std::string& name) {
  std::ifstream file("trainer/cpp/testdata/optimizers.txt");
  std::vector<uint8_t> bytes;
  for (std::string line; std::getline(file, line);) {
    for (size_t i = 0; i + 1 < line.size(); i += 2) {
      bytes.push_back(
          static_cast<uint8_t>(std::stoi(line.substr(i, 2), nullptr, 16)));
    }
  }
  return DecodeState(bytes).At(name);
}

at::Tensor TensorOf(const StateValue& value) {
  return internal::FromState(value.AsTensor());
}

std::unique_ptr<torch::optim::Optimizer> Make(const std::string& name,
                                              const at::Tensor& weights) {
  const std::vector<at::Tensor> all = {weights};
  if (name == "SGD") return std::make_unique<torch::optim::SGD>(all, 1.0);
  if (name == "Adam") return std::make_unique<torch::optim::Adam>(all);
  if (name == "AdamW") return std::make_unique<torch::optim::AdamW>(all);
  if (name == "RMSprop") return std::make_unique<torch::optim::RMSprop>(all);
  return std::make_unique<torch::optim::Adagrad>(all);
}

class OptimizerStateTest : public ::testing::TestWithParam<const char*> {
 protected:
  const StateValue python_ = FromPython(GetParam());
  at::Tensor weights_ =
      TensorOf(python_.At("before")).clone().set_requires_grad(true);
  const std::unique_ptr<torch::optim::Optimizer> optimizer_ =
      Make(GetParam(), weights_);
};

TEST_P(OptimizerStateTest, GoesOnAsPythonsDoes) {
  SharedOptimizer("optimizer", *optimizer_).take(python_.At("state"));
  weights_.mutable_grad() = at::ones_like(weights_);
  optimizer_->step();
  EXPECT_TRUE(at::allclose(weights_.detach(), TensorOf(python_.At("after")),
                           1e-6, 1e-7))
      << weights_ << TensorOf(python_.At("after"));
}

TEST_P(OptimizerStateTest, GivesWhatPythonsWouldTake) {
  const Shared shared = SharedOptimizer("optimizer", *optimizer_);
  EXPECT_EQ(shared.type, GetParam());
  const StateValue& theirs = python_.At("state");
  shared.take(theirs);
  const StateValue mine = shared.give();
  for (const StateItem& item : theirs.At("state").Find(0)->AsDict()) {
    const StateValue& value = mine.At("state").Find(0)->At(item.key.AsString());
    EXPECT_TRUE(TensorOf(value).equal(TensorOf(item.value)))
        << item.key.AsString();
  }
  const StateValue& group = mine.At("param_groups").AsList()[0];
  for (const StateItem& item : theirs.At("param_groups").AsList()[0].AsDict()) {
    const StateValue& value = group.At(item.key.AsString());
    const bool number = std::holds_alternative<int64_t>(item.value.variant());
    EXPECT_TRUE(number ? value.AsNumber() == item.value.AsNumber()
                       : value == item.value)
        << item.key.AsString();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, OptimizerStateTest,
                         ::testing::Values("SGD", "Adam", "AdamW", "RMSprop",
                                           "Adagrad"));

TEST(SharedOptimizerTest, WithoutASteppedParameterThereIsNoState) {
  at::Tensor weights = at::ones({2}).set_requires_grad(true);
  torch::optim::SGD optimizer({weights},
                              torch::optim::SGDOptions(1).momentum(1));
  const Shared shared = SharedOptimizer("optimizer", optimizer);
  const StateValue before = shared.give();
  weights.mutable_grad() = at::ones_like(weights);
  optimizer.step();
  EXPECT_EQ(shared.give().At("state").AsDict().size(), 1u);
  shared.take(before);
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(SharedOptimizerTest, OtherGroupsAndOptionsAreRefused) {
  at::Tensor weights = at::ones({2}).set_requires_grad(true);
  at::Tensor bias = at::ones({2}).set_requires_grad(true);
  torch::optim::Adam one(std::vector<at::Tensor>{weights});
  torch::optim::Adam two(std::vector<at::Tensor>{weights, bias});
  torch::optim::AdamW decoupled(std::vector<at::Tensor>{weights});
  const Shared shared = SharedOptimizer("optimizer", one);
  EXPECT_THROW(shared.take(SharedOptimizer("b", two).give()), RefusedError);
  try {
    shared.take(SharedOptimizer("c", decoupled).give());
    FAIL() << "it was taken";
  } catch (const RefusedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has decoupled_weight_decay on"));
  }
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
  EXPECT_THAT(objects_.names(), ElementsAre("place", "sgd"));
  EXPECT_THAT(objects_.optimizers(), ElementsAre(&named_, &unnamed_));
}

TEST_F(SharedObjectsTest, TheProgramsOwnThingsCanBeLeftAlone) {
  const StateValue state = objects_.Give();
  step_ = 9;
  named_.param_groups()[0].options().set_lr(0.75);
  objects_.Take(state, true);
  EXPECT_EQ(step_, 9);
  EXPECT_EQ(rate(), 0.5);
  objects_.Take(state, false);
  EXPECT_EQ(step_, 3);
}

TEST_F(SharedObjectsTest, UnnamedOptimizersHaveToMatch) {
  const StateValue state = objects_.Give();
  objects_.See(unnamed_);
  EXPECT_NO_THROW(objects_.Take(state, true));
  EXPECT_THROW(objects_.Take(state, false), RefusedError);
}

TEST_F(SharedObjectsTest, OtherTypesAreRefused) {
  const internal::SharedObjects others(
      {SharedOptimizer("sgd", named_),
       SharedNumbers("place", "Spot", {{"step", &step_}})},
      {});
  EXPECT_NO_THROW(objects_.Check(objects_.Give()));
  EXPECT_THROW(objects_.Check(others.Give()), RefusedError);
}

TEST_F(SharedObjectsTest, ANameIsThereOnce) {
  EXPECT_THROW(internal::SharedObjects({SharedOptimizer("sgd", named_),
                                        SharedOptimizer("sgd", unnamed_)},
                                       {}),
               InvalidArgument);
}

}  // namespace
}  // namespace pactrain
