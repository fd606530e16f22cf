// What agents have of trainers is state: said twice, late, or anew on a new
// stream it leads to the same.
#include <map>
#include <random>
#include <string>
#include <vector>

#include "coordinator/core/test_regroup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using protocol::Digest;
using protocol::EndGeneration;
using protocol::JoinRefused;
using protocol::LocalTrainers;
using protocol::MaskVote;
using protocol::OnShrink;
using protocol::StartGeneration;
using protocol::TrainerJoined;
using protocol::TrainerLeft;
using ::testing::HasSubstr;

class LocalTrainersTest : public RegroupTest {
 protected:
  void Say(const std::string& agent, const LocalTrainers& local) {
    t_.Say(agent, protocol::AgentMessage(local));
  }
  // Its stream breaks, and it says all that it has on the next one.
  void SayOnANewStream(const std::string& agent) {
    t_.Disconnect(agent);
    t_.Connect(agent, agent == "a" ? "x" : "y", /*same_process=*/true);
    Say(agent, t_.LocalOf(agent));
  }
  size_t CountNew(const LocalTrainers& local, const std::string& agent = "a") {
    return t_.state().CountNew(agent, local, t_.now());
  }
  bool Ended() const { return t_.journal().groups.at(t_.group).ended; }
};

TEST_F(LocalTrainersTest, TheSameAgainAndAnOlderOneChangeNothing) {
  Start(OnShrink::kPause);
  const LocalTrainers before = t_.LocalOf("b");
  t_.Leave("b", 3, "killed by signal 9");
  ASSERT_TRUE(Ended());
  t_.Clear();
  for (const LocalTrainers& said : {before, t_.LocalOf("b"), before}) {
    Say("b", said);
    EXPECT_FALSE(t_.Got<StartGeneration>("b"));
    EXPECT_FALSE(t_.Got<EndGeneration>("b"));
    EXPECT_TRUE(t_.records().empty());
  }
  // Nor where it was said before the stream broke, and comes after.
  SayOnANewStream("b");
  Say("b", before);
  EXPECT_THAT(t_.Snapshot().reason, HasSubstr("rank 3 (agent 'b', site 'y')"));
  EndAt("b", {2}, 7);
  EndAt("a", {0, 1}, 7);
  t_.Join("b", 3, 4);
  EXPECT_EQ(Newest().number, 2u);
}

TEST_F(LocalTrainersTest, sec_limits_JoinsAreRanksThatComeAnew) {
  t_.Connect("a", "x");
  t_.Join("a", 0, 2);
  EXPECT_EQ(CountNew(t_.LocalOf("a")), 0u);  // It waits.
  LocalTrainers local = t_.LocalOf("a");
  local.here[0].trainer.launch = "run-2";
  EXPECT_EQ(CountNew(local), 1u);
  local.group.job = "other";
  EXPECT_EQ(CountNew(local), 1u);
  t_ = TestCluster();
  Start(OnShrink::kContinue);
  local = t_.LocalOf("b");
  EXPECT_EQ(CountNew(local, "b"), 0u);
  // Who leaves and comes back in one message.
  TrainerJoined& first = local.here[0];
  first.generation = 0;
  local.left.push_back({t_.group, 2, first.trainer.attach_id, "detached"});
  EXPECT_EQ(CountNew(local, "b"), 1u);
  first.generation = 1;  // It goes on.
  EXPECT_EQ(CountNew(local, "b"), 0u);
}

// Who names those of another agent each time would have the others of its own
// agent shut out.
TEST_F(LocalTrainersTest, sec_TrainersOfAnotherAgentAreNoJoins) {
  t_.Connect("a", "x");
  t_.Connect("b", "y");
  t_.Join("a", 0, 3);
  t_.Join("b", 1, 3);
  LocalTrainers local = t_.LocalOf("b");
  local.here.push_back(t_.LocalOf("a").here[0]);
  local.here.back().trainer.launch = "run-2";
  ++local.revision;
  EXPECT_EQ(CountNew(local, "b"), 0u);
  Say("b", local);
  EXPECT_FALSE(t_.Got<JoinRefused>("b"));
  ++local.revision;
  local.here.back().trainer.attach_id = {7, 7};
  EXPECT_EQ(CountNew(local, "b"), 1u);
}

// Its agent names it until it has heard so.
TEST_F(LocalTrainersTest, sec_WhoWasRefusedIsRefusedAndCountedOnce) {
  t_.Connect("a", "x");
  t_.Connect("b", "y");
  t_.Join("a", 0, 2);
  t_.model = 8;
  t_.Join("b", 1, 2);
  ASSERT_TRUE(t_.Got<JoinRefused>("b"));
  LocalTrainers local = t_.LocalOf("b");
  const std::vector<TrainerJoined> named = {
      {t_.group, t_.TrainerOf("b", 1), 0, true}};
  const auto is_refused = [&](const std::vector<TrainerJoined>& here) {
    local.here = here;
    local.left.clear();
    ++local.revision;
    const size_t news = CountNew(local, "b");
    t_.Clear();
    Say("b", local);
    const bool refused = t_.Got<JoinRefused>("b").has_value();
    EXPECT_EQ(news, refused ? 1u : 0u);
    return refused;
  };
  EXPECT_FALSE(is_refused(named));
  // After it was heard, long after, and on a stream that was told nothing.
  EXPECT_FALSE(is_refused({}));
  EXPECT_TRUE(is_refused(named));
  EXPECT_FALSE(is_refused(named));
  t_.Pass(5, {"a", "b"});
  EXPECT_TRUE(is_refused(named));
  t_.Disconnect("b");
  t_.Connect("b", "y", /*same_process=*/true);
  EXPECT_TRUE(is_refused(named));
  EXPECT_FALSE(is_refused(named));
}

TEST_F(LocalTrainersTest, WhoLeftWhileTheStreamWasDownLeftForThatReason) {
  for (const char* const reason : {"detached", "killed by signal 9"}) {
    t_ = TestCluster();
    Start(OnShrink::kPause);
    t_.Disconnect("b");
    t_.Leave("b", 3, reason);  // Nobody hears it.
    EXPECT_FALSE(Ended());
    t_.Connect("b", "y", /*same_process=*/true);
    Say("b", t_.LocalOf("b"));
    t_.Pass(5, {"a", "b"});
    EXPECT_TRUE(Ended());
    EndAt("b", {2}, 7);
    EndAt("a", {0, 1}, 7);
    t_.Pass(1, {"a", "b"});
    // Nobody has to take the place of one that left in order.
    EXPECT_EQ(Newest().number, std::string(reason) == "detached" ? 2u : 1u);
  }
}

TEST_F(LocalTrainersTest, WhoIsNotNamedIsGoneAtOnce) {
  Start(OnShrink::kContinue);
  t_.Disconnect("a");
  t_.Connect("a", "x", /*same_process=*/true);
  t_.ForgetTrainers("a");
  EXPECT_FALSE(Ended());
  t_.Rejoin("a", 0, 1);
  ASSERT_TRUE(Ended());
  EXPECT_THAT(t_.Got<EndGeneration>("b")->reason,
              HasSubstr("rank 1 (agent 'a', site 'x') left: is not named"));
}

TEST_F(LocalTrainersTest, WhoWaitedAndIsNotNamedWaitsNoLonger) {
  t_.Connect("a", "x");
  t_.Join("a", 0, 2);
  t_.ForgetTrainers("a");
  t_.Join("a", 1, 2);
  EXPECT_FALSE(t_.Got<StartGeneration>("a"));
  EXPECT_THAT(t_.Snapshot().reason, HasSubstr("waiting for rank 0 of 2"));
}

// Its agent saw the new connection before the end of the old one.
TEST_F(LocalTrainersTest, WhoAttachesAgainAsItWaitsWaitsOnce) {
  t_.again = true;
  t_.Connect("a", "x");
  t_.Join("a", 0, 2);
  t_.ForgetTrainers("a");
  t_.Join("a", 0, 2);
  EXPECT_FALSE(t_.Got<JoinRefused>("a"));
  t_.Join("a", 1, 2);
  EXPECT_TRUE(t_.Got<StartGeneration>("a"));
}

TEST_F(LocalTrainersTest, AStreamThatBreaksInTheMiddleOfAVoteLosesNone) {
  Start(OnShrink::kPause);
  t_.Vote("a", 0, 5);
  t_.Disconnect("a");
  t_.Vote("a", 1, 5);  // Nobody hears it.
  for (uint32_t rank : {2, 3}) t_.Vote("b", rank, 5);
  EXPECT_EQ(t_.Snapshot().votes.missing, 1u);
  t_.Connect("a", "x", /*same_process=*/true);
  Say("a", t_.LocalOf("a"));
  EXPECT_EQ(t_.Snapshot().votes.missing, 0u);
  EXPECT_EQ(t_.Got<protocol::Prepare>("b")->decision.mode,
            protocol::Mode::kCompacted);
  // An older vote that comes late counts for nothing.
  t_.Vote("a", 1, 6);
  LocalTrainers late = t_.LocalOf("a");
  late.revision -= 2;
  late.votes[0].mask_digest = late.votes[1].mask_digest = {5, 5};
  Say("a", late);
  EXPECT_EQ(t_.Snapshot().votes.against, 1u);
}

TEST_F(LocalTrainersTest, HowFarThoseCameWhoLeftIsSaidWithIt) {
  Start(OnShrink::kContinue);
  const uint64_t after = Newest().base_step + 7;
  t_.Disconnect("a");
  for (uint32_t rank : {0, 1}) t_.Leave("a", rank, "detached");
  for (uint32_t rank : {2, 3}) t_.Leave("b", rank, "rank 0 left", true);
  LocalTrainers local = t_.LocalOf("a");
  local.report.emplace();
  local.report->group = t_.group;
  local.report->generation = 1;
  local.report->committed_step = after - 1;
  local.report->committed_count = 7;
  t_.Connect("a", "x", /*same_process=*/true);
  Say("a", local);
  // They have the newest state, and took it along.
  for (uint32_t rank : {2, 3}) Return("b", rank, after - 1);
  EXPECT_EQ(Newest().number, 1u);
  EXPECT_TRUE(t_.Got<JoinRefused>("b"));
}

// An agent of the release before says only what has changed.
TEST_F(LocalTrainersTest, WhatAnOlderAgentSaysAddsToWhatItSaidBefore) {
  t_.Connect("a", "x");
  protocol::Trainer trainer;
  trainer.world_size = 2;
  trainer.launch = "run-1";
  for (uint32_t rank : {0, 1}) {
    trainer.rank = rank;
    trainer.attach_id = {rank + 1, 1};
    Say("a", {t_.group, 0, {{t_.group, trainer, 0}}, {}, {}});
  }
  EXPECT_TRUE(t_.Got<StartGeneration>("a"));
  for (uint32_t rank : {0, 1}) {
    const MaskVote vote{t_.group, 1, rank, {1, 1}, {5, 5}, 1, 1, true, 30, 100};
    Say("a", {t_.group, 0, {}, {}, {vote}});
  }
  EXPECT_EQ(t_.Snapshot().votes.in_favour, 2u);
  Say("a", {t_.group, 0, {}, {{t_.group, 1, {2, 1}, "killed"}}, {}});
  EXPECT_TRUE(t_.Got<EndGeneration>("a"));
}

// Two agents with two ranks each, whose trainers come and go at random, and two
// coordinators. One hears each word once; the other hears words twice, old ones
// again, and all anew on new streams.
class Twins {
 public:
  Twins(OnShrink on_shrink, uint32_t seed)
      : on_shrink_(on_shrink), random_(seed) {
    for (const char* agent : {"a", "b"}) Connect(both_, agent, false);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      processes_.push_back({rank < 2 ? "a" : "b", rank, {}});
    }
  }

  void Act() {
    Process& p = processes_[Below(4)];
    switch (Below(8)) {
      case 0:
      case 1:
      case 2:
        if (p.where == kOut || p.where == kOver) Attach(p);
        break;
      case 3:
        if (p.where != kOut) Leave(p, Below(2) ? "killed" : "detached");
        break;
      case 4:
        for (Process& other : processes_) {
          if (other.agent == p.agent && other.where == kIn) End(other);
        }
        break;
      case 5:
        if (p.where == kIn) Vote(p);
        break;
      case 6:
        if (p.where == kIn && !JobEnded()) Report(p);
        break;
      default:
        for (TestCluster* t : both_) t->Pass(1, {"a", "b"});
    }
    Follow();
  }

  // The second one is disturbed.
  void Disturb() {
    const std::string agent = Below(2) ? "a" : "b";
    const std::vector<LocalTrainers>& said = said_[agent];
    if (said.empty()) return;
    if (Below(2)) {
      disturbed_.Disconnect(agent);
      Connect({&disturbed_}, agent, true);
      disturbed_.Say(agent, protocol::AgentMessage(said.back()));
    }
    for (uint32_t i = Below(3); i > 0; --i) {
      const size_t which = Below(2) ? said.size() - 1 : Below(said.size());
      disturbed_.Say(agent, protocol::AgentMessage(said[which]));
    }
  }

  void ExpectSame() const {
    const GroupSnapshot a = undisturbed_.Snapshot();
    const GroupSnapshot b = disturbed_.Snapshot();
    EXPECT_EQ(a.generation, b.generation);
    EXPECT_EQ(a.phase, b.phase);
    EXPECT_EQ(a.reason, b.reason);
    EXPECT_EQ(a.in_force, b.in_force);
    EXPECT_EQ(a.votes.in_favour, b.votes.in_favour);
    EXPECT_EQ(a.votes.against, b.votes.against);
    EXPECT_EQ(a.votes.missing, b.votes.missing);
  }
  bool Known() const {
    return !undisturbed_.state().Snapshot({}).groups.empty();
  }
  uint64_t generations() const { return followed_; }

 private:
  enum Where { kOut, kWaiting, kIn, kOver };
  struct Process {
    std::string agent;
    uint32_t rank = 0;
    protocol::Trainer trainer;
    Where where = kOut;
    uint32_t rank_here = 0;  // In its generation.
  };

  uint32_t Below(size_t n) { return static_cast<uint32_t>(random_() % n); }
  bool JobEnded() const {
    return undisturbed_.journal().groups.at(undisturbed_.group).ended;
  }
  static void Connect(const std::vector<TestCluster*>& clusters,
                      const std::string& agent, bool same) {
    for (TestCluster* t : clusters) {
      t->Connect(agent, agent == "a" ? "x" : "y", same);
    }
  }
  template <typename T>
  void Say(const std::string& agent, const T& what) {
    said_[agent].push_back(local_[agent].With(what));
    for (TestCluster* t : both_) {
      t->Say(agent, protocol::AgentMessage(said_[agent].back()));
    }
  }

  void Attach(Process& p) {
    protocol::Trainer& t = p.trainer;
    const bool again = p.where == kOver;
    const Digest last = t.attach_id;
    t.rank = p.rank;
    t.world_size = 4;
    t.launch = "run-1";
    t.on_shrink = on_shrink_;
    t.attach_id = {again ? last.hi : ++ids_, ++ids_};
    t.last_attach_id = again ? last : Digest{};
    if (!again) t.lineage = {};
    t.resume_step = t.lineage.id.empty() ? 0 : t.resume_step;
    p.where = kWaiting;
    Say(p.agent, TrainerJoined{undisturbed_.group, t, 0});
  }
  void Leave(Process& p, const std::string& reason) {
    Say(p.agent, TrainerLeft{undisturbed_.group, p.rank_here,
                             p.trainer.attach_id, reason});
    p.where = kOut;
  }
  void End(Process& p) {
    const bool may_return = on_shrink_ != OnShrink::kAbort;
    Say(p.agent, TrainerLeft{undisturbed_.group, p.rank_here,
                             p.trainer.attach_id, "a rank left",
                             /*generation_ended=*/true, may_return});
    p.where = may_return ? kOver : kOut;
  }
  void Vote(const Process& p) {
    const uint64_t mask = 5 + Below(2);
    Say(p.agent, MaskVote{undisturbed_.group,
                          followed_,
                          p.rank_here,
                          {1, 1},
                          {mask, mask},
                          1,
                          1,
                          true,
                          30,
                          100});
  }
  // A step that all committed.
  void Report(const Process& p) {
    ++committed_;
    for (TestCluster* t : both_) t->Report(p.agent, 1, committed_);
    for (Process& other : processes_) {
      if (other.where != kIn) continue;
      ++other.trainer.lineage.committed;
      ++other.trainer.resume_step;
    }
  }
  // Agents start the newest generation.
  void Follow() {
    const auto group = undisturbed_.journal().groups.find(undisturbed_.group);
    if (group == undisturbed_.journal().groups.end()) return;
    const protocol::Generation& g = group->second.generation;
    if (g.number == followed_) return;
    followed_ = g.number;
    committed_ = 0;
    for (const protocol::Member& member : g.members) {
      for (size_t i = 0; i < member.ranks.size(); ++i) {
        for (Process& p : processes_) {
          if (p.trainer.attach_id != member.attach_ids[i]) continue;
          p.where = kIn;
          p.rank_here = member.ranks[i];
          Say(p.agent, TrainerJoined{g.group, p.trainer, g.number});
          p.trainer.lineage = g.lineage;  // What it says when it comes again.
          p.trainer.resume_step = g.base_step;
        }
      }
    }
  }

  const OnShrink on_shrink_;
  std::mt19937 random_;
  TestCluster undisturbed_, disturbed_;
  const std::vector<TestCluster*> both_ = {&undisturbed_, &disturbed_};
  std::vector<Process> processes_;
  std::map<std::string, protocol::TrainersOfAgent> local_;
  std::map<std::string, std::vector<LocalTrainers>> said_;
  uint64_t ids_ = 0, followed_ = 0, committed_ = 0;
};

TEST(LocalTrainers, HoweverOftenAndLateTheyAreSaidTheStateIsTheSame) {
  uint64_t generations = 0;
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Twins twins(seed % 3 == 0   ? OnShrink::kAbort
                : seed % 3 == 1 ? OnShrink::kPause
                                : OnShrink::kContinue,
                seed);
    for (int i = 0; i < 120; ++i) {
      twins.Act();
      twins.Disturb();
      if (twins.Known()) twins.ExpectSame();
      if (testing::Test::HasFailure()) return;
    }
    generations += twins.generations();
  }
  EXPECT_GT(generations, 100u);
}

}  // namespace
}  // namespace pactrain::coordinator
