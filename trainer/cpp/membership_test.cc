// Ends of generations and the taking of state, against a fake agent: this is
// rank 1 of four, and the agent plays the others.
#include "trainer/cpp/membership.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/cpp/shared.h"
#include "trainer/cpp/transfer_form.h"
#include "trainer/fake_agent.h"

namespace pactrain::internal {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using trainer::FakeAgent;

constexpr uint64_t kPiece = 64;
constexpr Digest kEqual = {1, 2};
constexpr Digest kOther = {3, 4};

// A state of one number.
class Number : public LocalState {
 public:
  Settings settings() const override { return SettingsOf({}, 8, 1); }
  Digest ParameterDigest() const override { return digest; }
  std::vector<std::string> SharedNames() const override { return {"number"}; }
  size_t UnnamedOptimizers() const override { return unnamed; }
  StateValue Give() const override {
    if (value < 0) throw InvalidArgument("it is negative.\nMend it.");
    return StateValue::Dict({{"number", value}});
  }
  void Take(const StateValue& state, Part part) override {
    value = state.At("number").AsInt();
    parts.push_back(part);
  }
  void Entered() override { ++entered; }

  int64_t value = 17;
  Digest digest = kEqual;
  size_t unnamed = 0;
  std::vector<Part> parts;
  int entered = 0;
};

// One rank: session, state and membership.
class Rank {
 public:
  explicit Rank(const FakeAgent& agent, double attach_timeout_seconds = 20,
                std::function<std::chrono::steady_clock::time_point()> now =
                    std::chrono::steady_clock::now)
      : session({.config = {.agent = agent.address(),
                            .job = "job",
                            .launch = "launch",
                            .rank = 1,
                            .world_size = 4,
                            .attach_timeout_seconds = attach_timeout_seconds,
                            .on_shrink = OnShrink::kPause},
                 .elements = 1000}),
        membership(
            &session, &state, &clock, kPiece,
            [this](const std::string& text) { told.push_back(text); },
            std::move(now)) {}

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

// The header of a donor that is as Rank is, one step further.
TransferHeader Donors() {
  return {.settings = SettingsOf({}, 8, 1),
          .progress = {.committed = 1, .buffer_sync_age = 2},
          .parameters = kEqual,
          .names_digest = DigestOf("number"),
          .names = "number"};
}

// What rank 1 says, in the step that is answered with `answer`.
std::vector<uint8_t> Exchange(FakeAgent& agent, std::vector<uint8_t> answer) {
  const auto submits = agent.ReceiveStep();
  std::vector<uint8_t> said(4 * submits[0].elements);
  std::memcpy(said.data(), agent.slot(submits[0].offset), said.size());
  answer.resize(said.size());
  std::memcpy(agent.result(submits[0].offset), answer.data(), answer.size());
  wire::Decision next = {};
  next.mode = PT_FULL;
  next.codec = PT_CODEC_FP32;
  agent.SendCommitted(submits.back(), next);
  return said;
}

// Ends the generation in the open step.
void EndGeneration(FakeAgent& agent) {
  const auto submits = agent.ReceiveStep();
  wire::Failed failed = {};
  failed.header = {wire::Kind::kFailed, sizeof(failed)};
  failed.step = submits.back().step;
  failed.code = wire::Code::kStepNotApplied;
  failed.final = failed.may_rejoin = 1;
  std::strcpy(failed.text, "rank 2 is lost.\nWait.");
  agent.Send(failed);
}

// Takes rank 1, which has the job's state or none, into `generation`.
void EnterGeneration(FakeAgent& agent, bool has_state, uint64_t generation,
                     uint32_t donor, bool needs_state) {
  const wire::Hello hello = agent.Accept();
  EXPECT_EQ(hello.lineage.hi, has_state ? FakeAgent::kLineage.hi : 0u);
  EXPECT_EQ(hello.resume_step, has_state ? 7u : 0u);
  EXPECT_EQ(hello.on_shrink, PT_PAUSE);
  wire::Attached attached = FakeAgent::AttachedFor(hello);
  attached.generation = generation;
  attached.base_step = 20;
  attached.donor = donor;
  attached.needs_state = needs_state ? 1 : 0;
  agent.SendAttached(attached);
}

// Ends generation 3 in the open step, and takes rank 1 into generation 4.
void Regroup(FakeAgent& agent, uint32_t donor, bool needs_state) {
  EndGeneration(agent);
  EnterGeneration(agent, true, 4, donor, needs_state);
}

// The others' bits of who needs state, behind the header.
std::vector<uint8_t> WithNeedy(std::vector<uint8_t> header, uint8_t bits) {
  header.push_back(bits);
  return header;
}

void SendState(FakeAgent& agent, const std::vector<uint8_t>& state) {
  const Announcement announced = {.size = state.size(),
                                  .digest = DigestOf(state)};
  Exchange(agent, announced.Pack());
  for (size_t first = 0; first < state.size(); first += kPiece) {
    const size_t size = std::min<size_t>(kPiece, state.size() - first);
    const auto at = state.begin() + static_cast<ptrdiff_t>(first);
    Exchange(agent, {at, at + static_cast<ptrdiff_t>(size)});
  }
}

TEST(MembershipTest, ARankThatIsCurrentGoesOnWithItsGradients) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    Regroup(a, 0, false);
    Exchange(a, Donors().Pack());
  });
  Rank rank(agent);
  EXPECT_TRUE(rank.LoseStep());
  EXPECT_EQ(rank.session.generation(), 4u);
  EXPECT_EQ(rank.clock.committed(), 1u);
  EXPECT_EQ(rank.clock.ProgressAt(20 + 3).buffer_sync_age, 2u + 2u);
  EXPECT_THAT(rank.state.parts, ElementsAre());
  EXPECT_EQ(rank.state.entered, 1);
  EXPECT_THAT(rank.told, Contains(HasSubstr("4 ranks go on after 1 steps")));
}

TEST(MembershipTest, ARankThatMissedAStepTakesTheStateAndLaterTheRest) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    Regroup(a, 0, true);
    const auto said = Exchange(a, WithNeedy(Donors().Pack(), 0b10));
    EXPECT_EQ(said[TransferHeader::kBytes], 0b10);  // Rank 1.
    SendState(a, EncodeState(StateValue::Dict({{"number", 18}})));
  });
  Rank rank(agent);
  EXPECT_FALSE(rank.LoseStep());
  EXPECT_EQ(rank.state.value, 18);
  rank.state.value = 99;  // What an optimizer does with zeros.
  rank.membership.Undo();
  EXPECT_EQ(rank.state.value, 18);
  rank.membership.Catch();
  rank.membership.Catch();
  using Part = LocalState::Part;
  EXPECT_THAT(
      rank.state.parts,
      ElementsAre(Part::kWithoutProgram, Part::kWithoutProgram, Part::kWhole));
}

TEST(MembershipTest, ARankThatNeedsWhatItHasKeepsItsGradients) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    Regroup(a, 0, true);
    TransferHeader header = Donors();
    header.progress.committed = 0;
    Exchange(a, WithNeedy(header.Pack(), 0b10));
    SendState(a, EncodeState(StateValue::Dict({{"number", 18}})));
  });
  Rank rank(agent);
  EXPECT_TRUE(rank.LoseStep());
  rank.membership.Catch();
  EXPECT_THAT(rank.state.parts, ElementsAre(LocalState::Part::kWithoutProgram));
}

TEST(MembershipTest, TheDonorGivesItsState) {
  std::vector<uint8_t> state;
  {
    FakeAgent agent([&state](FakeAgent& a) {
      a.Attach();
      Regroup(a, 1, false);
      const auto said = Exchange(a, WithNeedy(Donors().Pack(), 0b1));
      const TransferHeader mine = TransferHeader::Unpack(said);
      EXPECT_EQ(mine.names, "number");
      EXPECT_EQ(mine.parameters, kEqual);
      EXPECT_EQ(said[TransferHeader::kBytes], 0);
      StateValue known = StateValue::Dict({{"number", 17}});
      const std::vector<uint8_t> bytes = EncodeState(known);
      const Announcement wanted = {.size = bytes.size(),
                                   .digest = DigestOf(bytes)};
      const auto announced = Exchange(a, wanted.Pack());
      EXPECT_EQ(Announcement::Unpack(announced).digest, wanted.digest);
      while (state.size() < bytes.size()) {
        const auto piece = Exchange(a, {});
        state.insert(state.end(), piece.begin(), piece.end());
      }
    });
    Rank rank(agent);
    EXPECT_TRUE(rank.LoseStep());
  }
  EXPECT_EQ(DecodeState(state).At("number").AsInt(), 17);
}

TEST(MembershipTest, ADonorThatCannotGiveItsStateSaysWhy) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    Regroup(a, 1, false);
    Exchange(a, WithNeedy(Donors().Pack(), 0b1));
    const auto said = Exchange(a, {});
    EXPECT_EQ(Announcement::Unpack(said).size, 0u);
    EXPECT_EQ(Announcement::Unpack(said).problem, "it is negative.");
  });
  Rank rank(agent);
  rank.state.value = -1;
  EXPECT_TRUE(rank.LoseStep());
}

TEST(MembershipTest, AGenerationThatEndsMeanwhileIsFollowedByAnother) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    Regroup(a, 0, true);
    EndGeneration(a);
    EnterGeneration(a, false, 5, 0, true);  // It had no state in generation 4.
    Exchange(a, WithNeedy(Donors().Pack(), 0b10));
    SendState(a, EncodeState(StateValue::Dict({{"number", 18}})));
  });
  Rank rank(agent);
  EXPECT_FALSE(rank.LoseStep());
  EXPECT_EQ(rank.session.generation(), 5u);
  EXPECT_EQ(rank.state.value, 18);
}

TEST(MembershipTest, AnAgentThatStaysAwayEndsTheSession) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    a.ReceiveStep();
    a.Die();  // The socket's file stays: nobody answers there.
  });
  Rank rank(agent, 1);
  try {
    ExchangeWords(rank.session, {0}, {5, 5});
    FAIL() << "the step was committed";
  } catch (const PacTrainError& error) {
    // Until the time for attaching is over.
    EXPECT_THROW(rank.membership.GoOn(error.what()), AgentUnresponsiveError);
  }
  EXPECT_THAT(rank.told, Contains(HasSubstr("trying again")));
}

// As where agents cannot reach each other.
TEST(MembershipTest, GenerationsThatEndBeforeAllHaveMetEndTheSession) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    Regroup(a, 0, true);
    EndGeneration(a);
    EnterGeneration(a, false, 5, 0, true);
    EndGeneration(a);
  });
  Rank rank(agent, 20, [calls = 0]() mutable {
    return std::chrono::steady_clock::time_point() +
           std::chrono::seconds(5 * calls++);
  });
  try {
    rank.LoseStep();
    FAIL() << "it went on";
  } catch (const StepNotAppliedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("No step was committed for 20 s"));
  }
}

// The error of a rank that enters generation 4 with these answers.
std::string ErrorOf(bool needs_state, const TransferHeader& header,
                    const Announcement& announced = {}, Digest mine = kEqual) {
  FakeAgent agent([&](FakeAgent& a) {
    a.Attach();
    Regroup(a, 0, needs_state);
    const bool fits =
        header.names_digest == DigestOf("number") && header.settings[0] == 1;
    Exchange(a, WithNeedy(header.Pack(), needs_state ? 0b10 : 0));
    if (needs_state && fits) Exchange(a, announced.Pack());
    if (needs_state && fits && announced.size > 0) Exchange(a, {1, 2, 3});
  });
  Rank rank(agent);
  rank.state.digest = mine;
  try {
    rank.LoseStep();
  } catch (const PacTrainError& error) {
    return error.what();
  }
  return "no error";
}

TEST(MembershipTest, RanksThatDoNotFitAreRefusedInWords) {
  EXPECT_THAT(ErrorOf(false, Donors(), {}, kOther),
              HasSubstr("The parameters of rank 1 differ from those of rank 0 "
                        "after the same step."));
  TransferHeader names = Donors();
  names.names_digest = kOther;
  names.names = "optimizer, place";
  EXPECT_THAT(ErrorOf(true, names),
              HasSubstr("Rank 0 shares optimizer, place, this rank number."));
  TransferHeader settings = Donors();
  settings.settings[0] = 0;
  EXPECT_THAT(ErrorOf(true, settings),
              HasSubstr("gse differs: rank 0 has 0, rank 1 has 1."));
  EXPECT_THAT(ErrorOf(true, Donors(), {.problem = "it is a lambda"}),
              HasSubstr("Rank 0 cannot give its state: it is a lambda"));
  EXPECT_THAT(ErrorOf(true, Donors(), {.size = 4, .digest = kOther}),
              HasSubstr("4 bytes, came with another digest"));
}

TEST(MembershipTest, WithoutADonorNobodyHasTheState) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    Regroup(a, wire::kNoRank, false);
  });
  Rank rank(agent);
  EXPECT_THROW(rank.LoseStep(), ResyncRequiredError);
}

// A rank that joins generation 3, whose donor says `header`.
class JoinTest : public ::testing::Test {
 protected:
  static FakeAgent Agent(TransferHeader header, bool gives) {
    return FakeAgent([header, gives](FakeAgent& a) {
      wire::Attached attached = FakeAgent::AttachedFor(a.Accept());
      attached.donor = 0;
      attached.needs_state = 1;
      a.SendAttached(attached);
      Exchange(a, WithNeedy(header.Pack(), 0b10));
      if (gives) SendState(a, EncodeState(StateValue::Dict({{"number", 5}})));
    });
  }
};

TEST_F(JoinTest, TakesAllThereIs) {
  const FakeAgent agent = Agent(Donors(), true);
  Rank rank(agent);
  rank.state.value = 0;
  rank.membership.Join();
  EXPECT_EQ(rank.state.value, 5);
  EXPECT_THAT(rank.state.parts, ElementsAre(LocalState::Part::kNewcomer));
  EXPECT_EQ(rank.clock.committed(), 1u);
  EXPECT_THAT(rank.told,
              ElementsAre("rank 1 took the state of rank 0 after 1 steps"));
}

TEST_F(JoinTest, CannotTakeAnOptimizerThatIsNotShared) {
  TransferHeader header = Donors();
  header.unnamed_optimizers = 1;
  const FakeAgent agent = Agent(header, false);
  Rank rank(agent);
  EXPECT_THROW(rank.membership.Join(), RefusedError);
}

TEST(TransferFormTest, TextsAreCutWhereACharacterBegins) {
  TransferHeader header = Donors();
  header.names = std::string(TransferHeader::kNamesBytes - 1, 'a') + "é";
  EXPECT_EQ(TransferHeader::Unpack(header.Pack()).names,
            std::string(TransferHeader::kNamesBytes - 1, 'a'));
}

TEST(SharedTest, NumbersGoByName) {
  int64_t epoch = 3, step = 4;
  const Shared shared =
      SharedNumbers("place", "Place", {{"epoch", &epoch}, {"step", &step}});
  const StateValue state = shared.give();
  EXPECT_EQ(state.At("epoch").AsInt(), 3);
  epoch = step = 0;
  shared.take(state);
  EXPECT_EQ(epoch, 3);
  EXPECT_EQ(step, 4);
  EXPECT_THROW(shared.take(StateValue::Dict()), InvalidArgument);
}

}  // namespace
}  // namespace pactrain::internal
