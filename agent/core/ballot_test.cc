#include "agent/core/ballot.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

using protocol::Abort;
using protocol::Cause;
using protocol::CommitVote;
using Kind = Resolution::Kind;

CommitVote Vote(uint64_t result, uint64_t candidate = 0,
                uint64_t parameters = 0) {
  CommitVote vote;
  vote.result = {result << 32, result};
  vote.parameters = {parameters << 32, parameters};
  vote.candidate = candidate;
  return vote;
}

Abort AbortFor(Cause cause, std::string detail = "") {
  Abort abort;
  abort.cause = cause;
  abort.detail = std::move(detail);
  return abort;
}

Abort AbortAfter(const CommitVote& vote, Cause cause) {
  Abort abort = AbortFor(cause);
  abort.voted = true;
  abort.vote = vote;
  return abort;
}

Ballot Three() { return Ballot({"agent x", "agent y", "agent z"}); }

TEST(Ballot, CommitsOnlyWithAllVotesEqual) {
  Ballot ballot = Three();
  ballot.AddVote(0, Vote(1));
  ballot.AddVote(1, Vote(1));
  EXPECT_EQ(ballot.Resolve().kind, Kind::kOpen);
  EXPECT_EQ(ballot.MissingVotes(), "agent z");
  ballot.AddVote(2, Vote(1));
  EXPECT_EQ(ballot.Resolve().kind, Kind::kCommitted);
}

TEST(Ballot, TheCandidateHoldsOnlyIfAllNameIt) {
  Ballot equal = Three(), mixed = Three();
  for (int m = 0; m < 3; ++m) {
    equal.AddVote(m, Vote(1, 5));
    mixed.AddVote(m, Vote(1, m == 1 ? 0 : 5));
  }
  EXPECT_EQ(equal.Resolve().candidate, 5u);
  EXPECT_EQ(mixed.Resolve().candidate, 0u);
}

TEST(Ballot, AVoteWithinAnAbortCounts) {
  Ballot ballot = Three();
  ballot.AddVote(0, Vote(1));
  ballot.AddAbort(1, AbortAfter(Vote(1), Cause::kStall));
  ballot.AddAbort(2, AbortAfter(Vote(1), Cause::kConnection));
  EXPECT_EQ(ballot.Resolve().kind, Kind::kCommitted);
}

TEST(Ballot, FailsOnlyWithAllAbortsAndByTheWorstCause) {
  Ballot ballot = Three();
  ballot.AddAbort(0, AbortFor(Cause::kConnection));
  ballot.AddAbort(1, AbortFor(Cause::kMask, "rank 3 has another mask set"));
  EXPECT_EQ(ballot.Resolve().kind, Kind::kOpen);
  EXPECT_TRUE(ballot.HasRefusal());
  ballot.AddAbort(2, AbortAfter(Vote(1), Cause::kStall));
  const Resolution resolution = ballot.Resolve();
  EXPECT_EQ(resolution.kind, Kind::kFailed);
  EXPECT_EQ(resolution.cause, Cause::kMask);
  EXPECT_EQ(resolution.detail, "agent y: rank 3 has another mask set");
}

TEST(Ballot, sec_digest_liar) {
  Ballot ballot = Three();
  ballot.AddVote(0, Vote(1));
  ballot.AddVote(1, Vote(2));
  ballot.AddVote(2, Vote(1));
  const Resolution resolution = ballot.Resolve();
  EXPECT_EQ(resolution.kind, Kind::kDisagreed);
  EXPECT_EQ(resolution.cause, Cause::kResultDigest);
  EXPECT_NE(resolution.detail.find("agent x, agent z"), std::string::npos);
  EXPECT_NE(resolution.detail.find("at agent y"), std::string::npos);
}

TEST(Ballot, UnequalParametersAreTheirOwnCause) {
  Ballot ballot = Three();
  for (int m = 0; m < 3; ++m) ballot.AddVote(m, Vote(1, 0, m == 2 ? 9 : 8));
  EXPECT_EQ(ballot.Resolve().cause, Cause::kParameters);
}

// A rank that has set its parameters by hand asks to compare; others do not.
TEST(Ballot, ParametersThatWereNotSentAreNoDigest) {
  Ballot ballot = Three();
  for (int m = 0; m < 3; ++m) ballot.AddVote(m, Vote(1, 0, m == 2 ? 9 : 0));
  EXPECT_EQ(ballot.Resolve().detail,
            "parameters differ: 00000009 at agent z; not sent at agent x, "
            "agent y");
}

TEST(Ballot, AWordOnceGivenStands) {
  Ballot ballot = Three();
  EXPECT_TRUE(ballot.AddVote(0, Vote(1)));
  EXPECT_TRUE(ballot.AddVote(0, Vote(1)));
  EXPECT_FALSE(ballot.AddVote(0, Vote(2)));
  EXPECT_FALSE(ballot.AddAbort(0, AbortFor(Cause::kStall)));
  EXPECT_TRUE(ballot.AddAbort(1, AbortFor(Cause::kStall)));
  EXPECT_FALSE(ballot.AddVote(1, Vote(1)));
  EXPECT_FALSE(ballot.AddAbort(1, AbortAfter(Vote(1), Cause::kStall)));
}

// Each of three members abstains, votes, aborts, or aborts after its vote;
// results are equal or the last one differs. Members hear any part of what was
// said: no two of them may conclude both that it was committed and that it
// failed.
TEST(Ballot, NoTwoMembersConcludeDifferently) {
  int concluded = 0;
  for (int said = 0; said < 4 * 4 * 4 * 2; ++said) {
    const int word[3] = {said & 3, (said >> 2) & 3, (said >> 4) & 3};
    const bool differs = said >= 64;
    bool committed = false, failed = false;
    for (int heard = 0; heard < 64; ++heard) {
      Ballot ballot = Three();
      for (int m = 0; m < 3; ++m) {
        const CommitVote vote = Vote(differs && m == 2 ? 2 : 1);
        const bool hear_vote = (heard >> (2 * m)) & 1;
        const bool hear_abort = (heard >> (2 * m + 1)) & 1;
        if ((word[m] == 1 || word[m] == 3) && hear_vote)
          ballot.AddVote(m, vote);
        if (word[m] == 2 && hear_abort) {
          ballot.AddAbort(m, AbortFor(Cause::kStall));
        }
        if (word[m] == 3 && hear_abort) {
          ballot.AddAbort(m, AbortAfter(vote, Cause::kStall));
        }
      }
      const Resolution resolution = ballot.Resolve();
      committed |= resolution.kind == Kind::kCommitted;
      failed |= resolution.kind == Kind::kFailed;
      // Said to the trainers as "nobody applied it".
      failed |= ballot.HasRefusal() || resolution.kind == Kind::kDisagreed;
    }
    ASSERT_FALSE(committed && failed) << "case " << said;
    concluded += committed || failed;
  }
  EXPECT_GT(concluded, 50);
}

}  // namespace
}  // namespace pactrain::agent
