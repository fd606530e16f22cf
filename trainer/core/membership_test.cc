// Ranks in memory: each is a core of its own, and their exchanges meet here.
#include "trainer/core/membership.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::trainer {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kPiece = PT_STATE_MESSAGE_BYTES;
constexpr uint64_t kBaseStep = 100;
constexpr auto kNotApplied = static_cast<int>(wire::Code::kStepNotApplied);
constexpr auto kAgentGone = static_cast<int>(wire::Code::kAgentUnresponsive);

// One rank, its state two texts. It holds that of generation 3, next step 7.
class Rank {
 public:
  explicit Rank(int32_t kind = PT_PYTHON, int32_t agent_returns = 1,
                uint64_t piece_bytes = kPiece)
      : core_([&] {
          pt_membership_options options = {};
          options.kind = kind;
          options.agent_returns = agent_returns;
          options.piece_bytes = piece_bytes;
          options.attach_timeout_ms = 20'000;
          return options;
        }()) {
    there.generation = 3;
    there.lineage = {uint64_t{0x1a2b3c4d} << 32, 5};
    there.resume_step = 7;
    there.world_size = 2;
    there.text = "rank 9 was lost.\nWait.";
  }

  void Begin() {
    pt_mine mine = {};
    mine.newcomer = newcomer ? 1 : 0;
    mine.progress.committed = committed;
    mine.progress.buffer_sync_age = committed + 1;
    mine.parameters = {1, parameters};
    mine.settings = settings.c_str();
    mine.shared = shared.c_str();
    mine.unshared_optimizers = unshared;
    Ask([&] { return core_.Begin(mine, there, now); });
  }

  // What was asked for is done.
  void Done() {
    there.code = 0;
    if (todo.action == PT_GIVE) {
      if (!problem.empty())
        return Failed(static_cast<int>(wire::Code::kInvalidArgument), problem);
      there.common = common.data();
      there.common_bytes = common.size();
      there.own = own.data();
      there.own_bytes = own.size();
    }
    if (todo.action == PT_EXCHANGE) ++there.resume_step;
    Ask([&] { return core_.Handle(there, now); });
  }

  void Failed(int32_t code, const std::string& text, bool over = false) {
    there.code = code;
    there.text = text.c_str();
    there.final = there.may_rejoin = over ? 1 : 0;
    Ask([&] { return core_.Handle(there, now); });
  }
  void GenerationEnds() { Failed(kNotApplied, "it ended.\nX.", true); }

  bool ended() const {
    return todo.action == PT_DONE || todo.action == PT_FAIL;
  }
  std::string Taken() const {
    const auto text = [](const void* data, uint64_t bytes) {
      return std::string(static_cast<const char*>(data), bytes);
    };
    return text(todo.common, todo.common_bytes) + " " +
           text(todo.own, todo.own_bytes);
  }
  std::string error() const {
    return todo.action == PT_FAIL ? todo.text : "no error";
  }

  bool newcomer = false;
  uint64_t committed = 5, parameters = 5;
  std::string settings = "gse 1\nbuffers 8\n", shared = "optimizer (SGD)";
  uint32_t unshared = 0;
  std::string common = "model", own = "momentum", problem;
  pt_result there = {};
  pt_todo todo = {};
  Membership::Time now = {};
  std::vector<std::string> told;

 private:
  template <typename Next>
  void Ask(Next next) {
    todo = next();
    if (todo.tell != nullptr) told.push_back(todo.tell);
  }

  Membership core_;
};

// Takes all into generation 4: `needy` are the ranks that need state.
void Enter(std::vector<Rank*> ranks, uint32_t donor,
           const std::vector<uint32_t>& needy, uint64_t generation = 4) {
  for (uint32_t r = 0; r < ranks.size(); ++r) {
    pt_result& there = ranks[r]->there;
    there.generation = generation;
    there.resume_step = kBaseStep;
    there.rank = r;
    there.world_size = static_cast<uint32_t>(ranks.size());
    there.donor = donor;
    there.needs_state = 0;
    for (const uint32_t n : needy) {
      if (n == r) there.needs_state = 1;
    }
    ranks[r]->newcomer ? ranks[r]->Begin() : ranks[r]->Done();
  }
}

// One step of all: false: somebody has ended.
bool Step(const std::vector<Rank*>& ranks) {
  for (Rank* rank : ranks) {
    if (rank->todo.action == PT_GIVE) rank->Done();
    if (rank->ended()) return false;
  }
  const pt_todo first = ranks[0]->todo;
  std::vector<uint32_t> sum(first.words);
  for (const Rank* rank : ranks) {
    EXPECT_EQ(rank->todo.words, first.words);
    EXPECT_EQ(rank->todo.layout.lo, first.layout.lo);
    EXPECT_LE(4 * rank->todo.words, kPiece);
    const auto* words = static_cast<const uint32_t*>(rank->todo.in);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] ^= words[i];
  }
  for (Rank* rank : ranks) {
    std::memcpy(rank->todo.out, sum.data(), 4 * sum.size());
    rank->Done();
  }
  return true;
}

void Meet(const std::vector<Rank*>& ranks) {
  while (Step(ranks)) {
  }
}

TEST(MembershipTest, ACurrentRankGoesOnWithItsGradients) {
  Rank a, b;
  for (Rank* rank : {&a, &b}) rank->Begin();
  EXPECT_EQ(a.todo.action, PT_ATTACH);
  EXPECT_EQ(a.todo.lineage.lo, 5u);
  EXPECT_EQ(a.todo.committed, 5u);
  EXPECT_EQ(a.todo.step, 7u);
  EXPECT_EQ(a.todo.ms, 20'000u);
  Enter({&a, &b}, 0, {});
  Meet({&a, &b});
  EXPECT_EQ(b.todo.action, PT_DONE);
  EXPECT_EQ(b.todo.kept, 1);
  EXPECT_EQ(b.todo.progress.buffer_sync_age, 6u);
  EXPECT_EQ(b.todo.common, nullptr);
  EXPECT_THAT(b.told,
              ElementsAre("generation 3 ended, attaching again: rank 9 was "
                          "lost.",
                          "generation 4: 2 ranks go on after 5 steps; rank 0 "
                          "is now rank 1"));
}

TEST(MembershipTest, ARankThatMissedAStepTakesTheState) {
  Rank a, b;
  a.common.assign(3 * kPiece + 5, 'm');  // In pieces.
  b.committed = b.parameters = 4;
  for (Rank* rank : {&a, &b}) rank->Begin();
  Enter({&a, &b}, 0, {1});
  Meet({&a, &b});
  EXPECT_EQ(a.todo.kept, 1);
  EXPECT_EQ(b.todo.kept, 0);
  EXPECT_EQ(b.todo.progress.committed, 5u);
  EXPECT_EQ(b.Taken(), a.common + " momentum");
}

TEST(MembershipTest, ALongTransferSaysHowFarItIs) {
  Rank a, b, cpp(PT_CPP);
  a.common.assign(200 * kPiece, 'm');
  b.newcomer = true;
  for (Rank* rank : {&a, &cpp}) rank->Begin();
  const std::vector<Rank*> all = {&a, &b, &cpp};
  Enter(all, 0, {1});
  for (Rank* rank : all) rank->told.clear();
  while (Step(all)) {
    for (Rank* rank : all) rank->now += std::chrono::milliseconds(30);
  }
  EXPECT_THAT(
      b.told,
      ElementsAre("rank 1 takes the model of rank 0: 0.2 of 0.2 MB",
                  HasSubstr("rank 1 took the state of rank 0 after 5 steps")));
  // At those who wait, too.
  EXPECT_EQ(a.told[0], b.told[0]);
  EXPECT_EQ(cpp.told[0], b.told[0]);
}

TEST(MembershipTest, AShortTransferSaysNothing) {
  Rank a, b;
  b.newcomer = true;
  a.Begin();
  Enter({&a, &b}, 0, {1});
  for (Rank* rank : {&a, &b}) rank->now = std::chrono::milliseconds(4'999);
  Meet({&a, &b});
  EXPECT_THAT(b.told, ElementsAre("rank 1 took the state of rank 0 after 5 "
                                  "steps"));
}

TEST(MembershipTest, OfManyWhoTakeAStateNotAllAreNamed) {
  std::vector<Rank> ranks(12);
  std::vector<Rank*> all;
  std::vector<uint32_t> needy;
  for (uint32_t r = 0; r < ranks.size(); ++r) {
    all.push_back(&ranks[r]);
    ranks[r].newcomer = r > 0;
    if (r > 0) needy.push_back(r);
  }
  ranks[0].Begin();
  Enter(all, 0, needy);
  for (Rank* rank : all) rank->now = seconds(5);
  EXPECT_TRUE(Step(all));
  EXPECT_TRUE(Step(all));
  EXPECT_STREQ(ranks[11].todo.tell,
               "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more take the model of rank "
               "0: 0.0 of 0.0 MB");
}

// The wait for who gives counts; only those who take it are told loudly.
TEST(MembershipTest, OptimizersOfAKindAreToldWithThoseWhoTakeThem) {
  Rank python, cpp(PT_CPP), young, other(PT_CPP);
  young.newcomer = other.newcomer = true;
  for (Rank* rank : {&python, &cpp}) rank->Begin();
  const std::vector<Rank*> all = {&python, &cpp, &young, &other};
  Enter(all, 0, {2, 3});
  for (int i = 0; i < 6; ++i) {  // Up to the pieces of the third transfer.
    for (Rank* rank : all) rank->now += seconds(5);
    EXPECT_TRUE(Step(all));
    if (i == 1) {
      EXPECT_STREQ(other.todo.tell,
                   "ranks 2, 3 take the model of rank 0: 0.0 of 0.0 MB");
      EXPECT_EQ(other.todo.warn, 1);
      EXPECT_EQ(cpp.todo.warn, 0);
    }
  }
  EXPECT_STREQ(other.todo.tell,
               "rank 3 takes optimizers and script of rank 1: 0.0 of 0.0 MB");
  EXPECT_EQ(other.todo.warn, 1);
  EXPECT_EQ(young.todo.warn, 0);
}

TEST(MembershipTest, PiecesAreSmallHoweverLargeTheModel) {
  constexpr uint64_t kMost = uint64_t{64} << 20;
  Rank a(PT_PYTHON, 1, 4 * kMost), b(PT_PYTHON, 1, 4 * kMost);
  a.common.assign(kMost + 4, 'm');
  b.newcomer = true;
  a.Begin();
  Enter({&a, &b}, 0, {1});
  EXPECT_TRUE(Step({&a, &b}));
  EXPECT_TRUE(Step({&a, &b}));
  EXPECT_EQ(4 * b.todo.words, kMost);
}

// It has the commit of all, and only that of a broadcast is missing.
TEST(MembershipTest, ARankThatNeedsWhatItHasKeepsItsGradients) {
  Rank a, b(PT_CPP);
  for (Rank* rank : {&a, &b}) rank->Begin();
  Enter({&a, &b}, 0, {1});
  Meet({&a, &b});
  EXPECT_EQ(b.todo.action, PT_DONE);
  EXPECT_EQ(b.todo.kept, 1);
  EXPECT_EQ(b.todo.common, nullptr);
}

TEST(MembershipTest, OptimizersComeFromARankOfTheSameKind) {
  Rank python, cpp(PT_CPP), other(PT_CPP), young;
  other.newcomer = young.newcomer = true;
  cpp.own = "other form";
  for (Rank* rank : {&python, &cpp}) rank->Begin();
  const std::vector<Rank*> all = {&python, &cpp, &other, &young};
  Enter(all, 0, {2, 3});
  Meet(all);
  EXPECT_EQ(other.Taken(), "model other form");
  EXPECT_EQ(young.Taken(), "model momentum");
  EXPECT_EQ(cpp.todo.action, PT_DONE);
}

TEST(MembershipTest, WithoutARankOfItsKindItLeavesWithAnError) {
  Rank python, cpp(PT_CPP);
  cpp.newcomer = true;
  python.Begin();
  Enter({&python, &cpp}, 0, {1});
  Meet({&python, &cpp});
  EXPECT_EQ(cpp.todo.code, static_cast<int>(wire::Code::kRefused));
  EXPECT_EQ(cpp.todo.leaves, 1);
  EXPECT_THAT(cpp.error(), HasSubstr("No C++ rank of generation 4 has"));
}

// D5: it said that it held nothing, and if the donor was gone nobody did.
TEST(MembershipTest, ARankHoldsOnToItsStateUntilTheNewOneIsComplete) {
  Rank a, b;
  b.committed = b.parameters = 4;
  for (Rank* rank : {&a, &b}) rank->Begin();
  Enter({&a, &b}, 0, {1});
  EXPECT_TRUE(Step({&a, &b}));  // The donor is lost in the transfer.
  b.GenerationEnds();
  EXPECT_EQ(b.todo.action, PT_ATTACH);
  EXPECT_EQ(b.todo.lineage.lo, 5u);
  EXPECT_EQ(b.todo.committed, 4u);
  EXPECT_EQ(b.todo.parameters.lo, 4u);
  EXPECT_EQ(b.todo.step, 7u);
  a.Done();  // Gives.
  a.GenerationEnds();
  EXPECT_EQ(a.todo.committed, 5u);
  EXPECT_EQ(a.todo.step, kBaseStep + 1);
}

TEST(MembershipTest, AStateNeverGoesBack) {
  Rank a, b;
  a.committed = a.parameters = 4;
  for (Rank* rank : {&a, &b}) rank->Begin();
  Enter({&a, &b}, 0, {1});
  Meet({&a, &b});
  EXPECT_THAT(b.error(),
              HasSubstr("Rank 0 would give a state of lineage 1a2b3c4d after 4 "
                        "steps to rank 1, which has one of lineage 1a2b3c4d "
                        "after 5 steps; a state never goes back."));
  EXPECT_EQ(b.todo.leaves, 0);
}

TEST(MembershipTest, AStateOfAnotherLineageIsNotTaken) {
  Rank a, b;
  b.committed = b.parameters = 4;
  for (Rank* rank : {&a, &b}) rank->Begin();
  for (Rank* rank : {&a, &b}) rank->there.lineage.hi = uint64_t{0x99} << 32;
  Enter({&a, &b}, 0, {1});
  Meet({&a, &b});
  EXPECT_THAT(b.error(),
              HasSubstr("Rank 0 would give a state of lineage 00000099 after 5 "
                        "steps to rank 1, which has one of lineage 1a2b3c4d "
                        "after 4 steps; a state is of use in its own"));
}

TEST(MembershipTest, ARankThatIsTakenForCurrentHasTheLineageToo) {
  Rank a, b;
  for (Rank* rank : {&a, &b}) rank->Begin();
  b.there.lineage.hi = uint64_t{0x99} << 32;
  Enter({&a, &b}, 0, {});
  Meet({&a, &b});
  EXPECT_EQ(a.todo.action, PT_DONE);
  EXPECT_THAT(b.error(), HasSubstr("of use in its own lineage only"));
}

TEST(MembershipTest, ExchangesAreRepeatedButNotForEver) {
  Rank a;
  a.Begin();
  Enter({&a}, 0, {});
  for (int i = 0; i < 9; ++i) {
    a.Failed(kNotApplied, "too late.\nAgain.");
    ASSERT_EQ(a.todo.action, PT_EXCHANGE);
  }
  a.Failed(kNotApplied, "too late.\nAgain.");
  EXPECT_EQ(a.error(), "too late.\nAgain.");
}

TEST(MembershipTest, AttachingIsTriedAgainForAWhile) {
  Rank a;
  a.Begin();
  for (int i = 0; i < 3; ++i) {
    a.there.may_rejoin = 1;
    a.Failed(kAgentGone, "no agent.\nStart it.", true);
    EXPECT_EQ(a.todo.action, PT_SLEEP);
    a.Done();
    EXPECT_EQ(a.todo.action, PT_ATTACH);
  }
  EXPECT_THAT(a.told, ElementsAre(HasSubstr("generation 3 ended"),
                                  "waiting up to 20 s for the agent: no "
                                  "agent."));
  a.now = seconds(21);
  a.Failed(kAgentGone, "no agent.\nStart it.", true);
  EXPECT_EQ(a.error(), "no agent.\nStart it.");
}

TEST(MembershipTest, AnAgentThatDoesNotReturnIsNotWaitedFor) {
  Rank a(PT_PYTHON, /*agent_returns=*/0);
  a.Begin();
  a.Failed(kAgentGone, "no agent.\nStart it.", true);
  EXPECT_EQ(a.todo.action, PT_FAIL);
  EXPECT_FALSE(MayGoOn({wire::Code::kAgentUnresponsive, "", true, true}, 0));
  EXPECT_TRUE(MayGoOn({wire::Code::kAgentUnresponsive, "", true, true}, 1));
  EXPECT_FALSE(MayGoOn({wire::Code::kRefused, "", true, true}, 1));
}

// As where agents cannot reach each other.
TEST(MembershipTest, GenerationsThatEndBeforeAllHaveMetEndTheSession) {
  Rank a;
  a.Begin();
  for (const bool late : {false, true}) {
    a.Done();
    a.there.generation += 1;
    if (late) a.now = seconds(21);
    a.GenerationEnds();
  }
  EXPECT_THAT(a.error(), HasSubstr("No step was committed for 20 s"));
}

TEST(MembershipTest, WaitingForASlowRankIsNoAttaching) {
  Rank a, b;
  for (Rank* rank : {&a, &b}) rank->Begin();
  b.committed = b.parameters = 4;
  Enter({&a, &b}, 0, {1});
  for (Rank* rank : {&a, &b}) rank->now = seconds(100);
  EXPECT_TRUE(Step({&a, &b}));
  b.GenerationEnds();
  EXPECT_EQ(b.todo.action, PT_ATTACH);
}

TEST(MembershipTest, WithoutADonorNobodyHasTheState) {
  Rank a;
  a.Begin();
  a.there.donor = wire::kNoRank;
  a.Done();
  EXPECT_EQ(a.todo.code, static_cast<int>(wire::Code::kResyncRequired));
  EXPECT_THAT(a.error(), HasSubstr("Generation 3 begins anew"));
}

// The error of a newcomer beside this donor, with which it is equal.
std::string Refusal(void (*change)(Rank& donor, Rank& newcomer)) {
  Rank donor, newcomer;
  newcomer.newcomer = true;
  donor.Begin();
  change(donor, newcomer);
  // `donor` has begun: only what it gives and says may be changed here.
  Enter({&donor, &newcomer}, 0, {1});
  Meet({&donor, &newcomer});
  EXPECT_EQ(newcomer.todo.leaves, 0);
  return newcomer.error();
}

TEST(MembershipTest, ANewcomerThatDoesNotFitIsRefusedInWords) {
  EXPECT_EQ(Refusal([](Rank&, Rank&) {}), "no error");
  EXPECT_THAT(
      Refusal([](Rank&, Rank& n) { n.settings = "gse 0\nbuffers 8\n"; }),
      HasSubstr("gse differs: rank 0 has True, rank 1 has False.\n"));
  EXPECT_THAT(Refusal([](Rank&, Rank& n) { n.shared = ""; }),
              HasSubstr("Rank 0 shares optimizer (SGD); this rank nothing."));
  EXPECT_THAT(Refusal([](Rank& d, Rank&) { d.problem = "it is a lambda."; }),
              HasSubstr("Rank 0 cannot give its state: it is a lambda."));
  EXPECT_THAT(Refusal([](Rank& d, Rank&) {
                d.unshared = 1;
                d.Begin();
              }),
              HasSubstr("trains with an optimizer that it does not share"));
}

TEST(MembershipTest, OtherParametersThanTheDonorsAreFound) {
  Rank a, b;
  b.parameters = 6;
  for (Rank* rank : {&a, &b}) rank->Begin();
  Enter({&a, &b}, 0, {});
  Meet({&a, &b});
  EXPECT_EQ(b.todo.code, static_cast<int>(wire::Code::kResyncRequired));
  EXPECT_THAT(b.error(), HasSubstr("The parameters of rank 1 differ from those "
                                   "of rank 0 after the same step."));
}

TEST(MembershipTest, ADamagedStateIsNotTaken) {
  Rank a, b;
  b.newcomer = true;
  a.Begin();
  Enter({&a, &b}, 0, {1});
  EXPECT_TRUE(Step({&a, &b}));
  EXPECT_TRUE(Step({&a, &b}));
  static_cast<uint8_t*>(const_cast<void*>(b.todo.in))[0] ^= 1;  // A piece.
  Meet({&a, &b});
  EXPECT_THAT(b.error(), HasSubstr("5 bytes, came with another digest"));
}

}  // namespace
}  // namespace pactrain::trainer
