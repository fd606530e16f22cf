// What a C++ client makes of its membership, against a fake agent that plays
// the other rank of two. All decisions are tested in
// trainer/core/membership_test.cc.
#include "trainer/cpp/membership.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/cpp/shared.h"
#include "trainer/cpp/words.h"
#include "trainer/fake_agent.h"
#include "trainer/other_rank.h"

namespace pactrain::internal {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using trainer::FakeAgent;
using Part = LocalState::Part;

// A state of one number.
class Number : public LocalState {
 public:
  std::string settings() const override { return "gse 1\n"; }
  Digest ParameterDigest() const override { return {1, 2}; }  // OtherRank's.
  std::string SharedText() const override { return "number"; }
  size_t UnnamedOptimizers() const override { return 0; }
  State Give() const override {
    if (value == 0) throw InvalidArgument("it is zero.\nMend it.");
    return {.common = {value}, .own = {7}};
  }
  void Take(const StateView& state, Part part) override {
    value = state.common[0];
    EXPECT_EQ(state.own[0], 8);
    parts.push_back(part);
  }
  void Entered() override { ++entered; }

  uint8_t value = 17;
  std::vector<Part> parts;
  int entered = 0;
};

// Rank 0 of two: session, state and membership.
struct Rank {
  explicit Rank(const FakeAgent& agent)
      : session({.config = {.agent = agent.address(),
                            .job = "job",
                            .launch = "launch",
                            .rank = 0,
                            .world_size = 2,
                            .attach_timeout_seconds = 20,
                            .on_shrink = OnShrink::kPause},
                 .elements = 1000}),
        membership(&session, &state, &clock, PT_STATE_MESSAGE_BYTES,
                   [this](const std::string& text) { told.push_back(text); }) {}

  // A step that fails, since the generation ends. Returns whether it goes on
  // with its gradients.
  bool LoseStep() {
    try {
      ExchangeWords(session, {0}, {5, 5});
    } catch (const PacTrainError& error) {
      EXPECT_TRUE(membership.MayGoOn(error));
      return membership.GoOn(error.what());
    }
    ADD_FAILURE() << "the step was committed";
    return false;
  }

  Session session;
  Number state;
  StepClock clock;
  std::vector<std::string> told;
  Membership membership;
};

OtherRank Other(const OtherRank& options) {
  OtherRank other = options;
  other.settings = "gse 1\n";
  other.shared = "number";
  if (!other.needs_state) {
    other.common = {18};
    other.own = {8};
  }
  return other;
}

wire::Attached Seat(const wire::Hello& hello, const OtherRank& other) {
  wire::Attached attached = FakeAgent::AttachedFor(hello);
  attached.world_size = 2;
  attached.generation = 4;
  attached.base_step = 20;
  attached.donor = other.donor;
  attached.needs_state = other.donor == 1 ? 1 : 0;
  return attached;
}

// Ends generation 3 in the open step; takes rank 0 into generation 4.
void Regroup(FakeAgent& agent, const OtherRank& other) {
  const auto submits = agent.ReceiveStep();
  wire::Failed failed = {};
  failed.header = {wire::Kind::kFailed, sizeof(failed)};
  failed.step = submits.back().step;
  failed.code = wire::Code::kStepNotApplied;
  failed.final = failed.may_rejoin = 1;
  std::strcpy(failed.text, "rank 2 is lost.\nWait.");
  agent.Send(failed);
  const wire::Hello hello = agent.Accept();
  EXPECT_EQ(hello.lineage.hi, FakeAgent::kLineage.hi);
  EXPECT_EQ(hello.parameters.hi, 1u);
  EXPECT_EQ(hello.resume_step, 7u);
  agent.SendAttached(Seat(hello, other));
}

TEST(MembershipTest, AStateWithOtherParametersThanItsDonorSaidIsNotGoneOnFrom) {
  FakeAgent agent([](FakeAgent& a) {
    OtherRank other = Other({});
    other.parameters = {3, 4};
    a.Attach();
    Regroup(a, other);
    other.Meet(a);
  });
  Rank rank(agent);
  try {
    rank.LoseStep();
    FAIL() << "it goes on";
  } catch (const ResyncRequiredError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("given other parameters than rank 1 says"));
  }
}

TEST(MembershipTest, ARankThatMissedAStepTakesTheStateAndLaterTheRest) {
  FakeAgent agent([](FakeAgent& a) {
    OtherRank other = Other({});
    a.Attach();
    Regroup(a, other);
    other.Meet(a);
  });
  Rank rank(agent);
  EXPECT_FALSE(rank.LoseStep());
  EXPECT_EQ(rank.state.value, 18);
  EXPECT_EQ(rank.clock.committed(), 2u);
  EXPECT_EQ(rank.state.entered, 1);
  EXPECT_THAT(rank.told, Contains(HasSubstr("2 ranks go on after 2")));
  rank.state.value = 99;  // What an optimizer does with zeros.
  rank.membership.Undo();
  EXPECT_EQ(rank.state.value, 18);
  rank.membership.Catch();
  rank.membership.Catch();
  EXPECT_THAT(
      rank.state.parts,
      ElementsAre(Part::kWithoutProgram, Part::kWithoutProgram, Part::kWhole));
}

TEST(MembershipTest, TheDonorGivesItsStateAndGoesOnWithItsGradients) {
  OtherRank other = Other({.donor = 0, .needs_state = true});
  {
    FakeAgent agent([&](FakeAgent& a) {
      a.Attach();
      Regroup(a, other);
      other.Meet(a);
    });
    Rank rank(agent);
    EXPECT_TRUE(rank.LoseStep());
    EXPECT_THAT(rank.state.parts, ElementsAre());
  }
  EXPECT_THAT(other.common, ElementsAre(17));
  EXPECT_THAT(other.own, ElementsAre(7));
}

TEST(MembershipTest, ADonorThatCannotGiveItsStateSaysWhy) {
  OtherRank other = Other({.donor = 0, .needs_state = true});
  {
    FakeAgent agent([&](FakeAgent& a) {
      a.Attach();
      Regroup(a, other);
      other.Meet(a);  // It has refused, and answers no more.
      const auto submits = a.ReceiveStep();
      a.SendFailed(submits.back().step, wire::Code::kResyncRequired, true,
                   "rank 1 has left.\nWait.");
    });
    Rank rank(agent);
    rank.state.value = 0;
    EXPECT_THROW(rank.LoseStep(), ResyncRequiredError);
  }
  EXPECT_THAT(other.error, HasSubstr("cannot give its state: it is zero."));
}

TEST(MembershipTest, ARankWithoutAnotherOfItsLanguageLeaves) {
  FakeAgent agent([](FakeAgent& a) {
    OtherRank other = Other({.kind = PT_PYTHON});
    const wire::Hello hello = a.Accept();
    a.SendAttached(Seat(hello, other));
    other.Meet(a, 1);
    EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
  });
  Rank rank(agent);
  EXPECT_THROW(rank.membership.Join(), RefusedError);
  EXPECT_EQ(rank.state.value, 17);
}

TEST(MembershipTest, ANewcomerTakesAllThereIs) {
  FakeAgent agent([](FakeAgent& a) {
    OtherRank other = Other({});
    const wire::Hello hello = a.Accept();
    a.SendAttached(Seat(hello, other));
    other.Meet(a);
  });
  Rank rank(agent);
  rank.membership.Join();
  EXPECT_EQ(rank.state.value, 18);
  EXPECT_THAT(rank.state.parts, ElementsAre(Part::kNewcomer));
  EXPECT_THAT(rank.told,
              ElementsAre("rank 0 took the state of rank 1 after 2 steps"));
}

TEST(SharedTest, NumbersGoByName) {
  int64_t epoch = 3, step = 4;
  const Shared shared =
      SharedNumbers("place", "Place", {{"epoch", &epoch}, {"step", &step}});
  const std::string state = shared.give();
  epoch = step = 0;
  shared.take(state);
  EXPECT_EQ(epoch, 3);
  EXPECT_EQ(step, 4);
  EXPECT_THROW(shared.take("epoch 9\n"), InvalidArgument);
  EXPECT_EQ(epoch, 3);
}

}  // namespace
}  // namespace pactrain::internal
