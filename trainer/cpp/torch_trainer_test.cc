// A TorchTrainer that a step goes past, against a fake agent: this is rank 0,
// first alone, then with a rank 1 that has come farther.
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/cpp/libtorch.h"
#include "trainer/fake_agent.h"
#include "trainer/other_rank.h"

namespace pactrain {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;
using trainer::FakeAgent;

// Answers a step of `ranks` with `answer`, or with what was said.
void Answer(FakeAgent& agent, uint32_t ranks,
            std::vector<uint8_t> answer = {}) {
  const auto submits = agent.ReceiveStep();
  const size_t bytes = 4 * submits[0].elements;
  void* result = agent.result(submits[0].offset);
  std::memcpy(result, agent.slot(submits[0].offset), bytes);
  answer.resize(answer.empty() ? 0 : bytes);
  std::memcpy(result, answer.data(), answer.size());
  wire::Committed committed = {};
  committed.header = {wire::Kind::kCommitted, sizeof(committed)};
  committed.step = submits.back().step;
  committed.attempt = submits.back().attempt;
  committed.world_size = ranks;
  committed.next.mode = PT_FULL;
  committed.next.codec = PT_CODEC_FP32;
  agent.Send(committed);
}

void CommitGradients(FakeAgent& agent, uint32_t ranks) {
  Answer(agent, ranks);
  EXPECT_EQ(agent.Receive<wire::Vote>().header.kind, wire::Kind::kVote);
}

void EndGeneration(FakeAgent& agent) {
  const auto submits = agent.ReceiveStep();
  wire::Failed failed = {};
  failed.header = {wire::Kind::kFailed, sizeof(failed)};
  failed.step = submits.back().step;
  failed.code = wire::Code::kResyncRequired;
  failed.final = failed.may_rejoin = 1;
  std::strcpy(failed.text, "rank 1 came.\nGo on.");
  agent.Send(failed);
}

void EnterGeneration(FakeAgent& agent) {
  wire::Attached attached = FakeAgent::AttachedFor(agent.Accept());
  attached.world_size = 2;
  attached.generation = 4;
  attached.base_step = 20;
  attached.donor = 1;
  attached.needs_state = 1;
  agent.SendAttached(attached);
}

at::Tensor Pair(float first, float second) {
  return at::tensor({first, second});
}

AttachConfig Config(const std::string& agent) {
  return {.agent = agent,
          .job = "job",
          .launch = "launch",
          .rank = 0,
          .world_size = 1,
          .attach_timeout_seconds = 20,
          .on_shrink = OnShrink::kPause};
}

// Of rank 1: the weights 10 and 20, momentum 1, the seventh batch.
void GiveState(FakeAgent& agent) {
  at::Tensor weights = Pair(10, 20).set_requires_grad(true);
  torch::optim::SGD optimizer({weights},
                              torch::optim::SGDOptions(0.5).momentum(0.9));
  weights.mutable_grad() = at::ones({2});
  optimizer.step();
  int64_t batch = 7;
  const internal::SharedObjects shared(
      {SharedOptimizer("optimizer", optimizer),
       SharedNumbers("place", "Place", {{"batch", &batch}})},
      {});
  internal::OtherRank other;
  other.settings = internal::TextOf(internal::SettingsOf(Config(""), 0, 1)) +
                   "parameters_and_buffers " +
                   DigestOf("w (2,) torch.float32").ToString().substr(0, 8) +
                   "\n";
  other.shared = shared.text();
  other.own = shared.Give();
  // Of one parameter, which is kept: settle_steps, tolerate_outside; masks that
  // are wanted, in force (none) and agreed on.
  std::vector<uint32_t> common = {1, 0};
  for (const uint32_t there : {1u, 0u, 1u}) {
    common.insert(common.end(), {there, 0b11 * there, 0, 0});
  }
  for (const float weight : {10.f, 20.f}) {
    common.push_back(std::bit_cast<uint32_t>(weight));
  }
  other.common.resize(4 * common.size());
  std::memcpy(other.common.data(), common.data(), other.common.size());
  other.parameters = internal::DigestOfValues({{"w", Pair(10, 20)}}).ToC();
  other.Meet(agent);
}

class TorchTrainerTest : public ::testing::Test {
 protected:
  TorchTrainerOptions Options(const FakeAgent& agent) {
    return {.config = Config(agent.address()),
            .shared = {SharedOptimizer("optimizer", optimizer_),
                       SharedNumbers("place", "Place", {{"batch", &batch_}})}};
  }

  StepResult Step(TorchTrainer& trainer) {
    weights_.mutable_grad() = Pair(1, 1);  // The other rank's are zeros.
    const StepResult result = trainer.Step(optimizer_);
    ++batch_;
    return result;
  }

  std::vector<float> Weights() const {
    const auto* data = weights_.const_data_ptr<float>();
    return {data, data + 2};
  }

  at::Tensor weights_ = Pair(1, 2).set_requires_grad(true);
  torch::optim::SGD optimizer_{{weights_},
                               torch::optim::SGDOptions(0.5).momentum(0.9)};
  int64_t batch_ = 0;
};

TEST_F(TorchTrainerTest, ARankThatMissedAStepGoesOnAsTheOthersAre) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    Answer(a, 1);  // Settings.
    Answer(a, 1);  // First state.
    CommitGradients(a, 1);
    EndGeneration(a);
    EnterGeneration(a);
    GiveState(a);
    CommitGradients(a, 2);
    EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
  });
  TorchTrainer trainer({"Net", {{"w", weights_}}}, {}, Options(agent));
  EXPECT_FALSE(Step(trainer).missed);
  EXPECT_THAT(Weights(), ElementsAre(0.5f, 1.5f));

  const StepResult missed = Step(trainer);
  EXPECT_TRUE(missed.missed);
  EXPECT_EQ(missed.world_size, 2u);
  EXPECT_THAT(Weights(), ElementsAre(10, 20));  // Momentum has not moved them.
  EXPECT_EQ(batch_, 2);

  EXPECT_FALSE(Step(trainer).missed);
  EXPECT_EQ(batch_, 8);
  EXPECT_THAT(Weights(), ElementsAre(FloatEq(9.3f), FloatEq(19.3f)));
}

TEST_F(TorchTrainerTest, AJobThatBeganAnewEndsEveryLaterStep) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    Answer(a, 1);
    Answer(a, 1);
    EndGeneration(a);
    a.Attach();  // Without a donor.
    EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
  });
  TorchTrainer trainer({"Net", {{"w", weights_}}}, {}, Options(agent));
  for (int i = 0; i < 2; ++i) {
    try {
      Step(trainer);
      FAIL() << "it went on";
    } catch (const ResyncRequiredError& error) {
      EXPECT_THAT(error.what(), HasSubstr("begins anew"));
      EXPECT_TRUE(error.final());
    }
    EXPECT_FALSE(weights_.grad().defined());
  }
}

// One rank with half of its weights pruned; the masks are in force from the
// first step on.
class WatchedTest : public ::testing::Test {
 protected:
  void Run(int steps, const std::function<void(TorchTrainer&)>& train) {
    FakeAgent agent([steps, after = in_force_after_](FakeAgent& a) {
      a.Attach();
      Answer(a, 1);  // Settings.
      Answer(a, 1);  // First state.
      for (int i = 0; i < steps; ++i) {
        CommitWith(a, i < after ? Digest() : digest_);
        if (i > 0) continue;
        EXPECT_EQ(a.Receive<wire::Vote>().header.kind, wire::Kind::kVote);
      }
      EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
    });
    AttachConfig config = Config(agent.address());
    config.on_shrink = OnShrink::kAbort;
    TorchTrainer trainer(model_, MasksOfZeros(model_), {.config = config});
    digest_ = trainer.masks().digest();
    train(trainer);
  }
  static void CommitWith(FakeAgent& agent, const Digest& masks) {
    const auto submits = agent.ReceiveStep();
    const size_t bytes = 4 * submits[0].elements;
    std::memcpy(agent.result(submits[0].offset), agent.slot(submits[0].offset),
                bytes);
    wire::Committed committed = {};
    committed.header = {wire::Kind::kCommitted, sizeof(committed)};
    committed.step = submits.back().step;
    committed.attempt = submits.back().attempt;
    committed.world_size = 1;
    committed.next.mode = PT_FULL;
    committed.next.codec = PT_CODEC_FP32;
    committed.next.version = 2;
    committed.next.mask_digest = {masks.hi, masks.lo};
    agent.Send(committed);
  }
  void Step(TorchTrainer& trainer) {
    weights_.mutable_grad() = at::ones({2, 2});
    trainer.Step(optimizer_);
  }
  // What the next step throws, before it moves anything.
  std::string Refused(TorchTrainer& trainer) {
    const at::Tensor before = weights_.detach().clone();
    try {
      Step(trainer);
    } catch (const RefusedError& error) {
      EXPECT_TRUE(at::equal(before, weights_.detach()));
      return error.what();
    }
    return "it went on";
  }

  at::Tensor weights_ =
      at::tensor({1.f, 0.f, 2.f, 0.f}).reshape({2, 2}).set_requires_grad(true);
  TorchModel model_{"Net", {{"w", weights_}}};
  torch::optim::SGD optimizer_{{weights_},
                               torch::optim::SGDOptions(0.5).momentum(0.9)};
  int in_force_after_ = 0;  // Steps.
  static Digest digest_;
};
Digest WatchedTest::digest_;

TEST_F(WatchedTest, WeightsLoadedBeforeTheFirstStepAreRefusedAndStay) {
  Run(0, [&](TorchTrainer& trainer) {
    weights_.data().copy_(at::full({2, 2}, 3.f));
    EXPECT_THAT(Refused(trainer), HasSubstr("w has other weights outside"));
  });
}

TEST_F(WatchedTest, WeightsLoadedLaterAreRefusedAndStay) {
  Run(3, [&](TorchTrainer& trainer) {
    for (int i = 0; i < 3; ++i) Step(trainer);
    weights_.data().copy_(at::full({2, 2}, 3.f));
    EXPECT_THAT(Refused(trainer), HasSubstr("MasksOfZeros(model)"));
    EXPECT_THAT(Refused(trainer), HasSubstr("w has other weights outside"));
  });
}

TEST_F(WatchedTest, WeightsLoadedBeforeMasksAreInForceAreRefusedAndStay) {
  in_force_after_ = 2;
  Run(2, [&](TorchTrainer& trainer) {
    for (int i = 0; i < 2; ++i) Step(trainer);
    EXPECT_FALSE(trainer.masks_active());
    EXPECT_NE(weights_[0][1].item<float>(), 0);  // It trains.
    weights_.data().copy_(at::full({2, 2}, 3.f));
    EXPECT_THAT(Refused(trainer), HasSubstr("w has other weights outside"));
  });
}

TEST_F(WatchedTest, AZeroOfEitherSignIsOne) {
  Run(2, [&](TorchTrainer& trainer) {
    Step(trainer);
    weights_.data().mul_(-1);
    Step(trainer);
    EXPECT_EQ(trainer.WeightsOutside(), 0u);
  });
}

TEST_F(WatchedTest, AnOptimizerWithoutApplyMasksIsToldOf) {
  Run(2, [&](TorchTrainer& trainer) {
    Step(trainer);
    weights_.mutable_grad() = at::ones({2, 2});
    trainer.ExchangeGradients();
    weights_.mutable_grad() = at::ones({2, 2});
    optimizer_.step();
    EXPECT_THAT(Refused(trainer), HasSubstr("ApplyMasks(optimizer)"));
  });
}

TEST_F(WatchedTest, MoreZerosAreToldOf) {
  Run(2, [&](TorchTrainer& trainer) {
    Step(trainer);
    weights_.data()[0][0] = 0;
    Step(trainer);
    EXPECT_THAT(trainer.last_warning(), HasSubstr("SetMasks(MasksOfZeros"));
  });
}

TEST_F(WatchedTest, StepsOfItsOwnAreNot) {
  Run(5, [&](TorchTrainer& trainer) {
    for (int i = 0; i < 5; ++i) Step(trainer);
    EXPECT_EQ(trainer.last_warning(), "");
    EXPECT_EQ(trainer.WeightsOutside(), 0u);
  });
}

TEST(MasksOfZerosTest, NothingPrunedIsSaid) {
  const at::Tensor whole = at::ones({2, 2}).set_requires_grad(true);
  EXPECT_THROW(MasksOfZeros({"Net", {{"w", whole}}}), InvalidArgument);
}

// One rank whose program sets weights to zero by hand.
TEST(TrackingTest, AWeightThatMovesIsVotedForUntilMasksHaveSettledAgain) {
  std::vector<wire::Vote> votes;
  at::Tensor weights = at::ones({2, 2});
  weights[0][0] = 0;
  weights.set_requires_grad(true);
  torch::optim::SGD optimizer({weights}, torch::optim::SGDOptions(0.5));
  {
    FakeAgent agent([&votes](FakeAgent& a) {
      a.Attach();
      Answer(a, 1);  // Settings.
      Answer(a, 1);  // First state.
      const auto take = [&](int count) {
        while (count-- > 0) votes.push_back(a.Receive<wire::Vote>());
      };
      take(2);  // The first sight.
      for (int i = 0; i < 2; ++i) {
        Answer(a, 1);
        take(1);
      }
      Answer(a, 1);
      take(1);  // It moved.
      for (int i = 0; i < 3; ++i) {
        Answer(a, 1);
        take(1);
      }
      EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
    });
    AttachConfig config = Config(agent.address());
    config.on_shrink = OnShrink::kAbort;
    config.track = true;
    config.settle = 2;
    TorchTrainer trainer({"Net", {{"w", weights}}}, {}, {.config = config});
    const auto steps = [&](int count) {
      while (count-- > 0) {
        weights.mutable_grad() = at::zeros({2, 2});
        trainer.Step(optimizer);
      }
    };
    steps(2);
    EXPECT_EQ(trainer.masks().kept(), 3u);
    EXPECT_EQ(trainer.tracked_masks()->steps_unchanged, 2u);
    steps(1);
    weights.detach()[0][1] = 0;
    steps(3);
    EXPECT_EQ(trainer.masks().kept(), 2u);
    EXPECT_THROW(trainer.SetMasks({}), InvalidArgument);
    EXPECT_THROW(trainer.SyncMasks(), InvalidArgument);
  }
  ASSERT_EQ(votes.size(), 8u);
  std::vector<uint32_t> unchanged;
  for (const wire::Vote& vote : votes) {
    unchanged.push_back(vote.steps_unchanged);
    EXPECT_EQ(vote.settle_steps, 2u);
  }
  EXPECT_THAT(unchanged, ElementsAre(0, 0, 1, 2, 0, 0, 1, 2));
  EXPECT_STREQ(votes[3].moved, "");
  EXPECT_STREQ(votes[7].moved, "w 1 elements moved");
  EXPECT_NE(votes[3].mask_digest.lo, votes[7].mask_digest.lo);
}

// A rank that tracks one parameter, whose weights are set by hand.
class MovingTest : public ::testing::Test {
 protected:
  void SetUp() override { weights_.detach()[0][0] = 0; }

  // The agent takes what comes before the first step, then does `rest`.
  void Run(const std::function<void(FakeAgent&)>& rest,
           const std::function<void(TorchTrainer&)>& train) {
    FakeAgent agent([&](FakeAgent& a) {
      a.Attach();
      Answer(a, 1);  // Settings.
      Answer(a, 1);  // First state.
      TakeVotes(a, 2);
      rest(a);
    });
    AttachConfig config = Config(agent.address());
    config.on_shrink = OnShrink::kAbort;
    config.track = true;
    config.settle = 2;
    TorchTrainer trainer({"Net", {{"w", weights_}}}, {}, {.config = config});
    train(trainer);
  }

  void TakeVotes(FakeAgent& agent, int count) {
    while (count-- > 0) agent.Receive<wire::Vote>();
  }

  void Step(TorchTrainer& trainer) {
    weights_.mutable_grad() = at::zeros({2, 2});
    trainer.Step(optimizer_);
  }

  at::Tensor weights_ = at::ones({2, 2}).set_requires_grad(true);
  torch::optim::SGD optimizer_{{weights_}, torch::optim::SGDOptions(0.5)};
};

TEST_F(MovingTest, WhatMovedIsComparedAndNamedWhereRanksDiffer) {
  Run(
      [&](FakeAgent& a) {
        for (int i = 0; i < 2; ++i) {
          Answer(a, 1);
          TakeVotes(a, 1);
        }
        Answer(a, 1);
        TakeVotes(a, 1);  // It moved.
        const wire::Submit moved = a.ReceiveStep().back();
        EXPECT_NE(moved.parameters.lo, 0u);
        wire::Failed failed = {};
        failed.header = {wire::Kind::kFailed, sizeof(failed)};
        failed.step = moved.step;
        failed.code = wire::Code::kResyncRequired;
        failed.final = 1;
        std::strcpy(failed.text, "parameters differ: a, b.\nStart them again.");
        a.Send(failed);
      },
      [&](TorchTrainer& trainer) {
        for (int i = 0; i < 3; ++i) Step(trainer);
        weights_.detach()[0][1] = 0;
        try {
          Step(trainer);
          FAIL() << "it went on";
        } catch (const ResyncRequiredError& error) {
          EXPECT_TRUE(error.final());
          EXPECT_THAT(error.what(), HasSubstr("moved at rank 0: w 1.\nPrune"));
        }
      });
}

TEST_F(MovingTest, MasksThatNeverSettleAreWarnedOfWithTheirNames) {
  constexpr int kSteps = 101;
  Run(
      [&](FakeAgent& a) {
        for (int i = 0; i < kSteps; ++i) {
          Answer(a, 1);
          TakeVotes(a, 1);
        }
        EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
      },
      [&](TorchTrainer& trainer) {
        for (int i = 1; i <= kSteps; ++i) {
          EXPECT_EQ(trainer.last_warning(), "");
          weights_.detach()[0][1] = i % 4 < 2 ? 1 : 0;
          Step(trainer);
        }
        EXPECT_THAT(trainer.last_warning(), HasSubstr("moved for 102 steps"));
        EXPECT_THAT(trainer.last_warning(), HasSubstr("moved most: w "));
      });
}

TEST_F(MovingTest, MasksThatSettledButAreNotAgreedOnAreWarnedOf) {
  constexpr int kSettle = 2;
  constexpr int kSteps = kSettle + 50 + kSettle;
  Run(
      [&](FakeAgent& a) {
        for (int i = 0; i < kSteps; ++i) {
          Answer(a, 1);
          if (i < kSettle) TakeVotes(a, 1);
        }
        EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
      },
      [&](TorchTrainer& trainer) {
        for (int i = 0; i < kSteps; ++i) {
          EXPECT_EQ(trainer.last_warning(), "");
          Step(trainer);
        }
        EXPECT_THAT(trainer.last_warning(),
                    HasSubstr("not been agreed on for 52 steps"));
        EXPECT_THAT(trainer.last_warning(), HasSubstr("sends all elements"));
      });
}

TEST(TrackingTest, MasksBesideTrackingAreRefused) {
  AttachConfig config = Config("unix:/nowhere");
  config.track = true;
  at::Tensor weights = at::ones({2, 2}).set_requires_grad(true);
  EXPECT_THROW(
      TorchTrainer({"Net", {{"w", weights}}},
                   {{"w", at::ones({2, 2}, at::kBool)}}, {.config = config}),
      InvalidArgument);
}

}  // namespace
}  // namespace pactrain
