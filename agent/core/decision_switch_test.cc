#include "agent/core/decision_switch.h"

#include <algorithm>
#include <string>
#include <vector>

#include "agent/core/ballot.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

using protocol::Decision;
using protocol::Mode;

Decision Compacted(uint64_t version) {
  Decision decision;
  decision.version = version;
  decision.mode = Mode::kCompacted;
  decision.mask_digest = {7, 7};
  decision.layout_digest = {8, 8};
  return decision;
}

Decision Full(uint64_t version) {
  Decision decision;
  decision.version = version;
  return decision;
}

const std::vector<MaskState> kMatching = {{0, {8, 8}, {7, 7}},
                                          {1, {8, 8}, {7, 7}}};
const std::vector<MaskState> kOther = {{0, {8, 8}, {7, 7}},
                                       {1, {8, 8}, {9, 9}}};

TEST(DecisionSwitch, AnAgreedCandidateHoldsFromTheNextStep) {
  DecisionSwitch s(Full(1));
  EXPECT_EQ(s.Prepare(Compacted(2), kMatching), "");
  EXPECT_EQ(s.NameCandidate(), 2u);
  s.OnResolved(2);
  EXPECT_EQ(s.in_force().version, 2u);
  EXPECT_EQ(s.candidate(), 0u);
}

TEST(DecisionSwitch, AFailedAttemptKeepsTheCandidate) {
  DecisionSwitch s(Full(1));
  s.Prepare(Compacted(2), kMatching);
  s.NameCandidate();
  s.OnResolved(0);
  EXPECT_EQ(s.in_force().version, 1u);
  EXPECT_EQ(s.NameCandidate(), 2u);
}

TEST(DecisionSwitch, OtherMasksAreRefusedWithBothDigests) {
  DecisionSwitch s(Full(1));
  const std::string reason = s.Prepare(Compacted(2), kOther);
  EXPECT_NE(reason.find("rank 1"), std::string::npos) << reason;
  EXPECT_EQ(s.candidate(), 0u);
  EXPECT_EQ(s.Prepare(Full(3), kOther), "");
  EXPECT_NE(s.Prepare(Compacted(0), kMatching), "");
}

TEST(DecisionSwitch, ANamedCandidateOutlivesRevokeAndPrepare) {
  DecisionSwitch s(Full(1));
  s.Prepare(Compacted(2), kMatching);
  s.NameCandidate();
  s.Revoke(2);
  EXPECT_EQ(s.candidate(), 2u);
  EXPECT_EQ(s.Prepare(Compacted(3), kMatching), "");
  EXPECT_EQ(s.candidate(), 2u);
  s.OnResolved(0);
  EXPECT_EQ(s.candidate(), 3u);
}

// One PREPARE is in flight: the next takes its place, at once or, once a vote
// has named it, when that attempt is over.
TEST(DecisionSwitch, sec_limits_PreparesInFlight) {
  DecisionSwitch s(Full(1));
  s.Prepare(Compacted(2), kMatching);
  s.Prepare(Compacted(3), kMatching);
  EXPECT_EQ(s.candidate(), 3u);
  EXPECT_EQ(s.NameCandidate(), 3u);
  s.Prepare(Compacted(4), kMatching);
  s.Prepare(Compacted(5), kMatching);
  EXPECT_EQ(s.candidate(), 3u);
  s.OnResolved(0);
  EXPECT_EQ(s.NameCandidate(), 5u);
  s.Revoke(5);
  s.OnResolved(0);
  EXPECT_EQ(s.NameCandidate(), 0u) << "one of them was kept";
}

TEST(DecisionSwitch, ARevokedCandidateIsGoneOnceTheAttemptIsOver) {
  DecisionSwitch s(Full(1));
  s.Prepare(Compacted(2), kMatching);
  s.NameCandidate();
  s.Revoke(2);
  s.OnResolved(0);
  EXPECT_EQ(s.NameCandidate(), 0u);
}

TEST(DecisionSwitch, AChangedMaskWithdrawsTheCandidate) {
  DecisionSwitch s(Full(1));
  s.Prepare(Compacted(2), kMatching);
  EXPECT_EQ(s.OnMasks(kMatching), "");
  EXPECT_NE(s.OnMasks(kOther), "");
  EXPECT_EQ(s.candidate(), 0u);
}

TEST(DecisionSwitch, AnActivatedCandidateBeatsItsOldReplacement) {
  DecisionSwitch s(Full(1));
  s.Prepare(Compacted(3), kMatching);
  s.NameCandidate();
  s.Prepare(Compacted(2), kMatching);
  s.OnResolved(3);
  EXPECT_EQ(s.in_force().version, 3u);
  EXPECT_EQ(s.candidate(), 0u);
}

// Every order in which three agents can hear PREPARE 2, REVOKE 2 and PREPARE 3
// between the votes of two steps, with one of them refusing version 2 or not:
// whatever each heard before it voted, all leave a commit under one decision.
class ThreeAgents {
 public:
  enum What { kPrepare2, kRevoke2, kPrepare3 };

  // `heard[a]`: how many of `order` agent a hears before each of the two votes.
  void Run(const std::vector<What>& order, const int heard[2][3], int refuser) {
    std::vector<DecisionSwitch> agents(3, DecisionSwitch(Full(1)));
    int next[3] = {0, 0, 0};
    for (int step = 0; step < 2; ++step) {
      Ballot ballot({"a", "b", "c"});
      std::vector<uint64_t> named(3);
      for (int a = 0; a < 3; ++a) {
        while (next[a] < heard[step][a]) {
          Hear(agents[a], order[next[a]++], a == refuser ? kOther : kMatching);
        }
        protocol::CommitVote vote;
        vote.result = {1, 1};
        vote.candidate = named[a] = agents[a].NameCandidate();
        ASSERT_TRUE(ballot.AddVote(a, vote));
        ASSERT_FALSE(a == refuser && vote.candidate == 2);
      }
      // One more thing is heard while the votes are open.
      for (int a = 0; a < 3; ++a) {
        if (next[a] < static_cast<int>(order.size()) && step == 0) {
          Hear(agents[a], order[next[a]++], a == refuser ? kOther : kMatching);
        }
      }
      const Resolution resolution = ballot.Resolve();
      ASSERT_EQ(resolution.kind, Resolution::Kind::kCommitted);
      const bool unanimous =
          named[0] == named[1] && named[1] == named[2] && named[0] != 0;
      ASSERT_EQ(resolution.candidate, unanimous ? named[0] : 0);
      const uint64_t before = agents[0].in_force().version;
      for (DecisionSwitch& agent : agents) {
        agent.OnResolved(resolution.candidate);
      }
      for (const DecisionSwitch& agent : agents) {
        ASSERT_EQ(agent.in_force().version, unanimous ? named[0] : before);
      }
    }
    ++runs;
  }
  int runs = 0;

 private:
  static void Hear(DecisionSwitch& agent, What what,
                   const std::vector<MaskState>& masks) {
    if (what == kRevoke2) return agent.Revoke(2);
    if (what == kPrepare2) {
      agent.Prepare(Compacted(2), masks);
    } else {
      agent.Prepare(Full(3), masks);
    }
  }
};

TEST(DecisionSwitch, NoOrderOfPrepareRefusalAndRevokeSplitsAgents) {
  ThreeAgents agents;
  std::vector<ThreeAgents::What> order = {
      ThreeAgents::kPrepare2, ThreeAgents::kRevoke2, ThreeAgents::kPrepare3};
  do {
    for (int refuser = -1; refuser < 3; ++refuser) {
      for (int code = 0; code < 4096; ++code) {  // Six numbers of 0..3.
        int heard[2][3];
        for (int i = 0; i < 6; ++i) heard[i / 3][i % 3] = (code >> (2 * i)) & 3;
        agents.Run(order, heard, refuser);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(agents.runs, 6 * 4 * 4096);
}

}  // namespace
}  // namespace pactrain::agent
