#include "agent/core/collective.h"

#include <cstring>

#include "agent/core/wire_convert.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Member = Collective::Member;
using Says = Collective::Says;

constexpr uint32_t kNccl = 22907;
constexpr absl::Duration kNow = absl::Seconds(100);

Member OnGpu(uint32_t rank) {
  return {rank, kNccl, absl::StrCat("GPU-", rank)};
}

// "0 Go": who is told what.
std::vector<std::string> Words(const Says& says) {
  std::vector<std::string> words;
  for (const Collective::Say& say : says) {
    const auto kind =
        std::visit([](const auto& m) { return m.header.kind; }, say.message);
    const char* name = kind == wire::Kind::kMakeId   ? "MakeId"
                       : kind == wire::Kind::kOpen   ? "Open"
                       : kind == wire::Kind::kGo     ? "Go"
                       : kind == wire::Kind::kTaken  ? "Taken"
                       : kind == wire::Kind::kByHost ? "ByHost"
                                                     : "Close";
    words.push_back(absl::StrCat(say.member, " ", name));
  }
  return words;
}

class CollectiveTest : public ::testing::Test {
 protected:
  void Open() {
    collective_.Begin(kNow);
    collective_.OnId(0, Id());
    for (size_t m = 0; m < 2; ++m) collective_.OnOpened(m, Opened());
    ASSERT_EQ(collective_.phase(), Collective::Phase::kReady);
  }
  static wire::CollectiveId Id() {
    auto id = MakeMessage<wire::CollectiveId>(wire::Kind::kCollectiveId);
    id.epoch = 1;
    std::memset(id.id, 7, sizeof(id.id));
    return id;
  }
  static wire::Opened Opened() {
    auto opened = MakeMessage<wire::Opened>(wire::Kind::kOpened);
    opened.epoch = 1;
    return opened;
  }
  static wire::Staged Staged(uint32_t bucket, uint64_t elements = 10) {
    auto staged = MakeMessage<wire::Staged>(wire::Kind::kStaged);
    staged.epoch = 1;
    staged.step = 5;
    staged.attempt = 1;
    staged.bucket = bucket;
    staged.elements = elements;
    staged.dtype = 1;
    return staged;
  }
  static wire::BucketWord Reduced(uint32_t bucket) {
    auto word = MakeMessage<wire::BucketWord>(wire::Kind::kReduced);
    word.epoch = 1;
    word.step = 5;
    word.attempt = 1;
    word.bucket = bucket;
    return word;
  }
  static wire::CollectiveFailed Failed(const std::string& text) {
    auto failed =
        MakeMessage<wire::CollectiveFailed>(wire::Kind::kCollectiveFailed);
    failed.epoch = 1;
    SetText(text, failed.text);
    return failed;
  }
  void Stage(uint32_t bucket) {
    for (size_t m = 0; m < 2; ++m) {
      collective_.OnStaged(m, Staged(bucket), kNow);
    }
  }
  uint64_t Fallbacks(Fallback fallback) const {
    return collective_.counters().fallbacks[static_cast<size_t>(fallback)];
  }

  Collective collective_{{OnGpu(2), OnGpu(3)}, {}};
};

TEST_F(CollectiveTest, TheLeadersIdOpensACommunicatorOfAll) {
  EXPECT_THAT(Words(collective_.Begin(kNow)), ElementsAre("0 MakeId"));
  const Says says = collective_.OnId(0, Id());
  EXPECT_THAT(Words(says), ElementsAre("0 Open", "1 Open"));
  const auto& open = std::get<wire::Open>(says[1].message);
  EXPECT_EQ(open.rank, 1u);
  EXPECT_EQ(open.ranks, 2u);
  EXPECT_EQ(open.id[127], 7);
  collective_.OnOpened(1, Opened());
  EXPECT_EQ(collective_.phase(), Collective::Phase::kOpening);
  collective_.OnOpened(0, Opened());
  EXPECT_EQ(collective_.phase(), Collective::Phase::kReady);
}

TEST_F(CollectiveTest, ABucketIsTakenOnceAllHaveStagedAndReducedIt) {
  Open();
  EXPECT_THAT(collective_.OnStaged(1, Staged(0), kNow), IsEmpty());
  EXPECT_THAT(Words(collective_.OnStaged(0, Staged(0), kNow)),
              ElementsAre("0 Go", "1 Go"));
  EXPECT_THAT(collective_.OnReduced(0, Reduced(0), kNow), IsEmpty());
  EXPECT_FALSE(collective_.IsTaken(5, 1, 0));
  EXPECT_THAT(Words(collective_.OnReduced(1, Reduced(0), kNow)),
              ElementsAre("0 Taken", "1 Taken"));
  EXPECT_TRUE(collective_.IsTaken(5, 1, 0));
  EXPECT_FALSE(collective_.IsTaken(5, 1, 1));
  EXPECT_EQ(collective_.counters().taken_buckets, 1u);
  collective_.OnAttempt();
  EXPECT_FALSE(collective_.IsTaken(5, 1, 0));
}

TEST_F(CollectiveTest, BeforeAllHaveOpenedBucketsGoByTheHost) {
  collective_.Begin(kNow);
  collective_.OnId(0, Id());
  collective_.OnOpened(0, Opened());
  EXPECT_THAT(Words(collective_.OnStaged(0, Staged(0), kNow)),
              ElementsAre("0 ByHost"));
}

TEST_F(CollectiveTest, WhatOneSendsByTheHostAllDo) {
  Open();
  collective_.OnStaged(0, Staged(0), kNow);
  EXPECT_THAT(Words(collective_.OnHostSubmit(1, 5, 1, 0)),
              ElementsAre("0 ByHost"));
  collective_.OnStaged(1, Staged(1), kNow);
  EXPECT_THAT(Words(collective_.OnStaged(0, Staged(1), kNow)),
              ElementsAre("0 Go", "1 Go"));
  EXPECT_EQ(Fallbacks(Fallback::kBucket), 1u);
}

TEST_F(CollectiveTest, WhoStagesLaterThanAnotherSentItGoesByTheHost) {
  Open();
  collective_.OnHostSubmit(1, 5, 1, 0);
  collective_.OnStaged(1, Staged(1), kNow);
  EXPECT_THAT(Words(collective_.OnStaged(0, Staged(0), kNow)),
              ElementsAre("0 ByHost"));
  EXPECT_THAT(Words(collective_.OnStaged(0, Staged(1), kNow)),
              ElementsAre("0 Go", "1 Go"));
}

TEST_F(CollectiveTest, WhatIsNotAlikeNeverBegins) {
  Open();
  collective_.OnStaged(0, Staged(0, 10), kNow);
  EXPECT_THAT(Words(collective_.OnStaged(1, Staged(0, 11), kNow)),
              ElementsAre("0 ByHost", "1 ByHost"));
  wire::Staged other = Staged(1);
  other.mask_digest = {1, 2};
  collective_.OnStaged(0, Staged(1), kNow);
  EXPECT_THAT(Words(collective_.OnStaged(1, other, kNow)),
              ElementsAre("0 ByHost", "1 ByHost"));
}

TEST_F(CollectiveTest, AFailureOfOneClosesItForAll) {
  Open();
  Stage(0);
  collective_.OnReduced(0, Reduced(0), kNow);
  const Says says = collective_.OnFailed(1, Failed("no memory"));
  EXPECT_THAT(Words(says), ElementsAre("0 Close", "1 Close"));
  EXPECT_EQ(GetText(std::get<wire::Close>(says[0].message).text),
            "rank 3: no memory");
  EXPECT_FALSE(collective_.IsTaken(5, 1, 0));
  EXPECT_EQ(collective_.phase(), Collective::Phase::kOff);
  EXPECT_EQ(Fallbacks(Fallback::kError), 1u);
}

TEST_F(CollectiveTest, WhatIsSaidOfAClosedOneIsIgnored) {
  Open();
  Stage(0);
  collective_.OnFailed(1, Failed("x"));
  EXPECT_THAT(collective_.OnReduced(0, Reduced(0), kNow), IsEmpty());
  EXPECT_THAT(collective_.OnStaged(0, Staged(1), kNow), IsEmpty());
  EXPECT_THAT(collective_.OnFailed(0, Failed("y")), IsEmpty());
  EXPECT_THAT(collective_.Tick(kNow + absl::Hours(1)), IsEmpty());
  EXPECT_EQ(collective_.reason(), "rank 3: x");
}

TEST_F(CollectiveTest, AnExchangeThatTakesTooLongIsClosed) {
  Open();
  Stage(0);
  EXPECT_THAT(collective_.Tick(kNow + absl::Seconds(14)), IsEmpty());
  for (size_t m = 0; m < 2; ++m) collective_.OnReduced(m, Reduced(0), kNow);
  Stage(1);
  collective_.OnReduced(0, Reduced(1), kNow);
  EXPECT_THAT(collective_.Tick(kNow + absl::Milliseconds(1999)), IsEmpty());
  EXPECT_THAT(Words(collective_.Tick(kNow + absl::Seconds(2))),
              ElementsAre("0 Close", "1 Close"));
  EXPECT_EQ(collective_.reason(),
            "rank 3 had not reduced bucket 1 of step 5 after 2s");
  EXPECT_EQ(Fallbacks(Fallback::kTimeout), 1u);
}

TEST_F(CollectiveTest, ALargeBucketHasMoreTime) {
  Open();
  for (size_t m = 0; m < 2; ++m) {
    collective_.OnStaged(m, Staged(0, 1'000'000'000), kNow);
  }
  EXPECT_THAT(collective_.Tick(kNow + absl::Seconds(79)), IsEmpty());
  EXPECT_THAT(Words(collective_.Tick(kNow + absl::Seconds(80))),
              ElementsAre("0 Close", "1 Close"));
}

TEST_F(CollectiveTest, OneThatNeverOpensIsGivenUp) {
  collective_.Begin(kNow);
  collective_.OnId(0, Id());
  collective_.OnOpened(0, Opened());
  EXPECT_THAT(Words(collective_.Tick(kNow + absl::Minutes(2))),
              ElementsAre("0 Close", "1 Close"));
  EXPECT_EQ(collective_.reason(), "rank 3 has not opened it in 2m");
  EXPECT_EQ(Fallbacks(Fallback::kOpening), 1u);
}

TEST_F(CollectiveTest, WhoWaitsForOthersToStageWaitsForABoundedTime) {
  Open();
  collective_.OnStaged(0, Staged(0), kNow);
  EXPECT_THAT(collective_.Tick(kNow + absl::Minutes(29)), IsEmpty());
  EXPECT_THAT(Words(collective_.Tick(kNow + absl::Minutes(30))),
              ElementsAre("0 ByHost"));
}

TEST_F(CollectiveTest, AnAttemptThatEndsLetsGoOfWhatIsStaged) {
  Open();
  collective_.OnStaged(0, Staged(0), kNow);
  EXPECT_THAT(Words(collective_.OnAttempt()), ElementsAre("0 ByHost"));
}

TEST_F(CollectiveTest, AnAttemptThatEndsLeavesAnExchangeToItsEnd) {
  Open();
  Stage(0);
  EXPECT_THAT(collective_.OnAttempt(), IsEmpty());
  collective_.OnReduced(0, Reduced(0), kNow);
  EXPECT_THAT(Words(collective_.OnReduced(1, Reduced(0), kNow)),
              ElementsAre("0 Taken", "1 Taken"));
}

TEST_F(CollectiveTest, OneThatLeavesClosesItForTheOthers) {
  Open();
  Stage(0);
  EXPECT_THAT(Words(collective_.OnLost(1)), ElementsAre("0 Close"));
  EXPECT_EQ(collective_.reason(), "rank 3 left");
}

TEST_F(CollectiveTest, WhatComesOutOfOrderClosesIt) {
  Open();
  EXPECT_THAT(Words(collective_.OnReduced(0, Reduced(0), kNow)),
              ElementsAre("0 Close", "1 Close"));
  EXPECT_THAT(collective_.reason(), HasSubstr("nobody was told to begin"));
}

TEST(CollectiveUnfitTest, TrainersThatAskForNothingAreLeftAlone) {
  Collective none({{0, 0, ""}, {1, 0, ""}}, {});
  EXPECT_THAT(none.Begin(kNow), IsEmpty());
  EXPECT_EQ(none.phase(), Collective::Phase::kNone);
}

TEST(CollectiveUnfitTest, OnlyThoseThatAskHearWhyNot) {
  Collective mixed({{0, 0, ""}, OnGpu(1)}, {});
  EXPECT_THAT(Words(mixed.Begin(kNow)), ElementsAre("1 Close"));
  EXPECT_THAT(mixed.reason(), HasSubstr("rank 1 asks for NCCL, rank 0 of the"));
  EXPECT_EQ(mixed.counters().fallbacks[0], 1u);
}

TEST(CollectiveUnfitTest, EachReasonNamesWho) {
  EXPECT_EQ(Collective::Unfit({OnGpu(0), OnGpu(1)}), "");
  EXPECT_EQ(Collective::Unfit({OnGpu(4)}),
            "rank 4 is the only one of its model on this node");
  EXPECT_EQ(Collective::Unfit({OnGpu(0), {1, 22602, "GPU-1"}}),
            "rank 0 has NCCL 2.29.7, rank 1 of the same node 2.26.2");
  EXPECT_EQ(Collective::Unfit({OnGpu(0), {1, kNccl, "GPU-0"}}),
            "ranks 0 and 1 are on one GPU (GPU-0)");
  EXPECT_EQ(Collective::Unfit(
                {{0, kNccl, "GPU-0", "A100"}, {1, kNccl, "GPU-1", "H100"}}),
            "rank 1 is on a GPU of another kind (H100, GPU-1) than rank 0 of "
            "the same node (A100, GPU-0)");
  EXPECT_THAT(Collective::Unfit({OnGpu(0), {1, kNccl, "MIG-1"}}),
              HasSubstr("rank 1 is on a part of a GPU (MIG-1)"));
}

}  // namespace
}  // namespace pactrain::agent
