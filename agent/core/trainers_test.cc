// What of a trainer counts for its agent's limits. How hellos are refused is
// hello_test's.
#include "agent/core/trainers.h"

#include "agent/core/test_pair.h"
#include "base/status_matchers.h"

namespace pactrain::agent {
namespace {

using base::StatusIs;
using testing::HasSubstr;

// The hello of one that was `before`.
wire::Hello Again(const wire::Hello& before) {
  wire::Hello hello = before;
  hello.attach_id = {9, 9};
  hello.last_attach_id = before.attach_id;
  return hello;
}

class TrainersTest : public testing::Test {
 protected:
  static Options Limits() {
    Options options = OptionsOf("x", "a");
    options.max_memory_bytes = 2 * kBytes;  // A slot and a result.
    return options;
  }
  void Attach(TrainerId id, const wire::Hello& hello) {
    ASSERT_OK_AND_ASSIGN(TrainerRecord record, trainers_.Check(hello));
    record.id = id;
    trainers_.Add(std::move(record));
  }
  Trainers trainers_{Limits()};
};

TEST_F(TrainersTest, OneThatAttachesAgainTakesItsOwnMemory) {
  Attach(1, MakeHello(0));
  EXPECT_THAT(trainers_.Check(MakeHello(1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("has lent 8192 of its 8192")));
  ASSERT_OK_AND_ASSIGN(const TrainerRecord again,
                       trainers_.Check(Again(MakeHello(0))));
  ASSERT_NE(trainers_.FindReplaced(again), nullptr);
  EXPECT_EQ(trainers_.FindReplaced(again)->id, 1u);
  trainers_.Remove(1);
  EXPECT_EQ(trainers_.FindReplaced(again), nullptr);
}

TEST_F(TrainersTest, OneThatAttachesForTheFirstTimeReplacesNone) {
  Attach(1, MakeHello(0));
  EXPECT_EQ(trainers_.FindReplaced(*trainers_.Find(1)), nullptr);
}

TEST_F(TrainersTest, NobodyReplacesATrainerOfAnotherJob) {
  Attach(1, MakeHello(0));
  wire::Hello other = Again(MakeHello(0));
  SetText("other", other.job);
  EXPECT_THAT(
      trainers_.Check(other),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("lent")));
}

TEST_F(TrainersTest, WhoComesBackToThePlaceOfItsReplacerIsToldSo) {
  wire::Hello replaces = MakeHello(0);
  replaces.replace = 1;
  Attach(1, replaces);
  EXPECT_THAT(trainers_.Check(MakeHello(0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("the same launch runs; end it")));
  wire::Hello old = Again(MakeHello(0));
  old.attach_id = {7, 7};
  old.last_attach_id = {7, 6};
  old.lineage = {4, 4};
  EXPECT_THAT(trainers_.Check(old),
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("replaced it on purpose, and holds its rank "
                                 "(`pactrain-admin audit` says when)")));
}

TEST_F(TrainersTest, ThoseOfALaunchThatWaitTogetherShareARegion) {
  Trainers trainers(OptionsOf("x", "a"));
  ASSERT_OK_AND_ASSIGN(TrainerRecord first, trainers.Check(MakeHello(0)));
  const std::string region = first.region;
  first.id = 1;
  trainers.Add(std::move(first));
  ASSERT_OK_AND_ASSIGN(const TrainerRecord second,
                       trainers.Check(MakeHello(1)));
  EXPECT_EQ(second.region, region);
}

// One that was stopped may still read what its last step brought.
TEST_F(TrainersTest, TheNextGenerationHasARegionOfItsOwn) {
  Trainers trainers(OptionsOf("x", "a"));
  ASSERT_OK_AND_ASSIGN(TrainerRecord first, trainers.Check(MakeHello(0)));
  const std::string region = first.region;
  first.id = 1;
  trainers.Add(std::move(first));
  trainers.Find(1)->generation = 3;
  ASSERT_OK_AND_ASSIGN(const TrainerRecord again,
                       trainers.Check(Again(MakeHello(0))));
  EXPECT_NE(again.region, region);
  trainers.Remove(1);
  ASSERT_OK_AND_ASSIGN(const TrainerRecord later, trainers.Check(MakeHello(1)));
  EXPECT_NE(later.region, region);
}

TEST_F(TrainersTest, SlotsAreWholeLines) {
  wire::Hello hello = MakeHello(0);
  hello.slot_bytes = kBytes - wire::kSlotAlign + 1;
  ASSERT_OK_AND_ASSIGN(const TrainerRecord record, trainers_.Check(hello));
  EXPECT_EQ(record.bytes, kBytes);
}

TEST(TrainersLimitTest, AnAgentTakesNoMoreTrainersThanItsLimit) {
  Options options = OptionsOf("x", "a");
  options.max_trainers = 1;
  Trainers trainers(options);
  ASSERT_OK_AND_ASSIGN(TrainerRecord record, trainers.Check(MakeHello(0)));
  record.id = 1;
  trainers.Add(std::move(record));
  EXPECT_THAT(trainers.Check(MakeHello(1)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("has 1 trainer, its limit")));
  EXPECT_OK(trainers.Check(Again(MakeHello(0))));
}

}  // namespace
}  // namespace pactrain::agent
