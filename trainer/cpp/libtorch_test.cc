// What a libtorch model is made of, and how weights outside masks are kept.
#include "trainer/cpp/libtorch.h"

#include <torch/nn/modules.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::vector<std::string> Names(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& item : tensors) names.push_back(item.name);
  return names;
}

std::vector<float> Values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  return {flat.const_data_ptr<float>(),
          flat.const_data_ptr<float>() + flat.numel()};
}

// One parameter of 2 x 3 with the weights 1 to 6, in the order of columns.
TorchModel Columns() {
  const at::Tensor weights =
      at::arange(1, 7, at::kFloat).reshape({2, 3}).t().contiguous().t();
  return {"Net", {{"w", weights.clone().set_requires_grad(true)}}};
}

TEST(ModelTest, SharedParametersCountOnceAndFrozenOnesAreNotTrained) {
  struct Tied : torch::nn::Module {
    Tied() {
      first = register_module("first", torch::nn::Linear(2, 2));
      second = register_module("second", torch::nn::Linear(2, 2));
      second->register_parameter("again", first->weight);
      second->bias.set_requires_grad(false);
      register_module("norm", torch::nn::BatchNorm1d(2));
    }
    torch::nn::Linear first = nullptr, second = nullptr;
  } tied;
  const TorchModel model = ModelOf(tied);
  EXPECT_THAT(Names(model.parameters),
              ElementsAre("first.weight", "first.bias", "second.weight",
                          "second.bias", "norm.weight", "norm.bias"));
  EXPECT_THAT(Names(model.buffers),
              ElementsAre("norm.running_mean", "norm.running_var",
                          "norm.num_batches_tracked"));
  EXPECT_THAT(Names(internal::TrainedOf(model)),
              ElementsAre("first.weight", "first.bias", "second.weight",
                          "norm.weight", "norm.bias"));
}

TEST(PruneTest, WhatIsNoLayerOrCannotBeToldApartIsExempt) {
  torch::manual_seed(0);
  const auto tensor = [](std::vector<int64_t> shape) {
    return at::randn(shape).set_requires_grad(true);
  };
  const at::Tensor tied = at::zeros({4, 8}).set_requires_grad(true);
  const TorchModel model = {"Net",
                            {{"gain", tensor({1, 8, 1, 1})},
                             {"pos_embed", tensor({1, 16, 8})},
                             {"wpe.weight", tensor({16, 8})},
                             {"ssm.A_log", tensor({16, 8})},
                             {"experts.up_proj_bias", tensor({4, 8})},
                             {"block.rel_embeddings.weight", tensor({16, 8})},
                             {"block.mask_tokens", tensor({4, 8})},
                             {"stem.weight", tensor({8, 3, 3, 3})},
                             {"block.query.weight", tensor({8, 8})},
                             {"block.embed_tokens.weight", tensor({8, 8})},
                             {"block.norm1.weight", tensor({8, 4})},
                             {"block.pos_ffn.fc.weight", tensor({8, 8})},
                             {"block.lora_b", tied},
                             {"block.out.weight", tensor({8, 8})},
                             {"head.weight", tensor({1, 8})}}};
  const TorchMasks masks = PruneByMagnitude(model, 0.75);
  std::vector<std::string> names;
  for (const auto& [name, mask] : masks) {
    names.push_back(name);
    EXPECT_EQ(mask.sum().item<int64_t>(), 16);
  }
  EXPECT_THAT(names,
              ElementsAre("block.embed_tokens.weight", "block.out.weight",
                          "block.pos_ffn.fc.weight", "block.query.weight"));
}

TEST(PruneTest, AModelOfEqualWeightsHasNothingToPrune) {
  const auto ones = [] { return at::ones({4, 4}).set_requires_grad(true); };
  const TorchModel model = {"Net",
                            {{"a", ones()}, {"b", ones()}, {"c", ones()}}};
  EXPECT_THROW(PruneByMagnitude(model, 0.5), InvalidArgument);
}

TEST(ModelTest, AParameterLiesInABucketAsInMemory) {
  const TorchModel model = Columns();
  const ParameterTable table = internal::TableOf(model);
  EXPECT_THAT(table[0].strides, ElementsAre(1, 2));
  const Layout layout(table, 1000);
  internal::GradientBuckets buckets(table, layout, model.parameters);
  at::Tensor weights = model.parameters[0].tensor;
  const auto values = [&] {
    const std::vector<pt_part> parts = buckets.Parts(0);
    const auto* data = static_cast<const float*>(parts.at(0).data);
    return std::vector<float>(data, data + parts[0].elements);
  };
  weights.mutable_grad() = weights.detach() * 10;
  EXPECT_THAT(values(), ElementsAre(10, 40, 20, 50, 30, 60));
  EXPECT_EQ(buckets.Parts(0)[0].data, weights.grad().const_data_ptr());
  weights.mutable_grad() = (weights.detach() * 20).contiguous();
  EXPECT_THAT(values(), ElementsAre(20, 80, 40, 100, 60, 120));
  weights.mutable_grad() = (weights.detach() * -20)._neg_view();
  EXPECT_THAT(values(), ElementsAre(20, 80, 40, 100, 60, 120));
  weights.mutable_grad() = at::Tensor();
  buckets.HandOut();
  EXPECT_THAT(Values(weights.grad()), ElementsAre(20, 40, 60, 80, 100, 120));
  weights.mutable_grad() = at::Tensor();
  EXPECT_THAT(values(), Each(0.0f));
}

TEST(MasksTest, FollowTheOrderOfTheBucketAndComeBack) {
  const ParameterTable table = internal::TableOf(Columns());
  const at::Tensor kept =
      at::tensor({1, 0, 0, 1, 1, 1}).reshape({2, 3}).to(at::kBool);
  const MaskSet masks =
      internal::MaskSetOf(table, {{"w", kept}}, MaskKind::kFreeze);
  EXPECT_THAT(masks[0], ElementsAre(1, 1, 0, 1, 0, 1));
  EXPECT_TRUE(masks.is_frozen(0));
  EXPECT_TRUE(internal::MaskTensor(masks[0], table[0]).equal(kept));
}

class EnforcementTest : public ::testing::Test {
 protected:
  MaskSet Masks(MaskKind kind) const {
    const at::Tensor kept =
        at::tensor({1, 0, 0, 1, 1, 1}).reshape({2, 3}).to(at::kBool);
    return internal::MaskSetOf(table_, {{"w", kept}}, kind);
  }

  // Momentum moves all weights by -1 in every step.
  void Step() {
    at::Tensor weights = model_.parameters[0].tensor;
    weights.mutable_grad() = at::ones_like(weights);
    optimizer_.step();
    const at::NoGradGuard no_grad;
    enforcement_.Apply(optimizer_);
  }

  std::vector<float> Weights() const {
    return Values(model_.parameters[0].tensor.detach());
  }

  const TorchModel model_ = Columns();
  const ParameterTable table_ = internal::TableOf(model_);
  internal::Enforcement enforcement_{&table_, &model_.parameters};
  torch::optim::SGD optimizer_{
      std::vector<at::Tensor>{model_.parameters[0].tensor},
      torch::optim::SGDOptions(1.0).momentum(1.0).dampening(1.0)};
};

TEST_F(EnforcementTest, WeightsOutsideAreZeroFromTheActivationOn) {
  const MaskSet masks = Masks(MaskKind::kZero);
  EXPECT_THROW(enforcement_.Check(masks), PacTrainError);
  Step();
  EXPECT_THAT(Weights(), ElementsAre(0, 1, 2, 3, 4, 5));
  enforcement_.Activate(masks);
  Step();
  EXPECT_THAT(Weights(), ElementsAre(-1, 0, 0, 2, 3, 4));
  enforcement_.Check(masks);
}

TEST_F(EnforcementTest, FrozenWeightsGoBackToWhatTheyWereWhenAgreed) {
  const MaskSet masks = Masks(MaskKind::kFreeze);
  enforcement_.Agree(masks);
  enforcement_.Check(masks);
  Step();
  enforcement_.Activate(masks);  // Agreed on already: values stay.
  Step();
  EXPECT_THAT(Weights(), ElementsAre(-1, 2, 3, 2, 3, 4));
  EXPECT_EQ(enforcement_.CountOutside(masks, 0), 0u);
}

TEST_F(EnforcementTest, TheOptimizersStateIsZeroedOutside) {
  Step();
  enforcement_.Activate(Masks(MaskKind::kZero));
  Step();
  const auto& state = static_cast<torch::optim::SGDParamState&>(
      *optimizer_.state().begin()->second);
  EXPECT_THAT(Values(state.momentum_buffer()), ElementsAre(1, 0, 0, 1, 1, 1));
}

TEST_F(EnforcementTest, WeightsAndStateOutsideAreZeroEvenIfTheyAreNoNumbers) {
  at::Tensor weights = model_.parameters[0].tensor;
  weights.mutable_grad() = at::full_like(weights, NAN);
  optimizer_.step();
  enforcement_.Activate(Masks(MaskKind::kZero));
  const at::NoGradGuard no_grad;
  enforcement_.Apply(optimizer_);
  EXPECT_THAT(Values(weights.isnan().to(at::kFloat)),
              ElementsAre(1, 0, 0, 1, 1, 1));
  const auto& state = static_cast<torch::optim::SGDParamState&>(
      *optimizer_.state().begin()->second);
  EXPECT_THAT(Values(state.momentum_buffer().isnan().to(at::kFloat)),
              ElementsAre(1, 0, 0, 1, 1, 1));
}

TEST_F(EnforcementTest, GradientsOutsideAreZeroEvenIfTheyAreNoNumbers) {
  enforcement_.Activate(Masks(MaskKind::kZero));
  at::Tensor weights = model_.parameters[0].tensor;
  weights.mutable_grad() = at::full_like(weights, NAN);
  enforcement_.MaskGradients();
  EXPECT_THAT(Values(weights.grad().isnan().to(at::kFloat)),
              ElementsAre(1, 0, 0, 1, 1, 1));
}

}  // namespace
}  // namespace pactrain
