// What the command says of jobs and does with them, against a real coordinator.
#include <google/protobuf/util/json_util.h>

#include "coordinator/admin/job_text.h"
#include "coordinator/admin/test_admin.h"
#include "coordinator/rpc/admin_service.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

TEST_F(AdminTest, JobsAreATable) {
  EXPECT_EQ(Admin({"jobs"}).out, "no jobs are known\n");
  Form();
  const Outcome jobs = Admin({"jobs"});
  EXPECT_EQ(jobs.exit_code, 0) << jobs.err;
  EXPECT_EQ(
      jobs.out,
      "JOB    STATE    GENERATION  MEMBERS            STEP  IN FORCE   PIN\n"
      "myjob  running  1           2 agents, 2 ranks  -     FULL fp32  -\n");
}

TEST_F(AdminTest, AJobIsShownWithMembersDecisionsAndReasons) {
  Form();
  Vote({5, 5}, 30);
  const Outcome job = Admin({"job", "myjob"});
  EXPECT_EQ(job.exit_code, 0) << job.err;
  for (const char* part : {"state       running\n",
                           "in force    FULL fp32, version 1: generation 1",
                           "prepared    COMPACTED fp32, version 2: mask set ",
                           "keep        30.0 %\n", "risk r      not measured\n",
                           "AGENT  SITE   ADDRESS         RANKS\n",
                           "node1  site1  127.0.0.1:9001  1\n"}) {
    EXPECT_THAT(job.out, HasSubstr(part));
  }
}

TEST_F(AdminTest, MasksThatMoveAreShownWithTheirRankAndWhatMoved) {
  Form();
  EXPECT_THAT(Admin({"job", "myjob"}).out, Not(HasSubstr("masks ")));
  protocol::MaskVote vote{{"myjob", 0}, 1,  0,    {3, 3}, {5, 5},
                          10,           10, true, 3,      9};
  driver_->OnMessage(streams_[0], local_[0].With(vote));
  vote.rank = 1;
  vote.steps_unchanged = 7;
  vote.changed_step = 30;
  vote.moved = "fc.weight 12 elements moved";
  driver_->OnMessage(streams_[1], local_[1].With(vote));
  EXPECT_THAT(
      Admin({"job", "myjob"}).out,
      HasSubstr("masks       unchanged for 7 of 10 steps at rank 1, the least "
                "of all ranks\n"
                "moved       last before step 30: fc.weight 12 elements moved\n"
                "compacted   not yet\n"));
  vote.steps_unchanged = 10;
  driver_->OnMessage(streams_[1], local_[1].With(vote));
  protocol::StepReport report;
  report.group = {"myjob", 0};
  report.generation = 1;
  report.committed_step = report.committed_count = 45;
  report.first_compacted_step = 42;
  driver_->OnMessage(streams_[0], report);
  EXPECT_THAT(Admin({"job", "myjob"}).out,
              HasSubstr("masks       settled: unchanged for 10 steps at all "
                        "ranks\n"
                        "moved       last before step 30: fc.weight 12 "
                        "elements moved\n"
                        "compacted   first at step 42\n"));
  EXPECT_THAT(Admin({"job", "myjob", "--json"}).out,
              HasSubstr("\"firstCompactedStep\":\"42\""));
}

// As on the page. A job that was started again had no FULL step since.
TEST(JobDetails, WhatEarlierGenerationsSavedIsSaidWhereThisOnesIsNotKnown) {
  GroupSnapshot group;
  group.group = {"myjob", 0};
  group.generation.emplace();
  group.account.dense_bytes = 10e6;
  EXPECT_THAT(JobDetails(ToProto(group)), HasSubstr("time not known"));
  group.account.saved_seconds = 120;
  EXPECT_THAT(JobDetails(ToProto(group)), HasSubstr("at least 120.0 s ("));
  group.account.saved_by = SavedBy::kFull;
  EXPECT_THAT(JobDetails(ToProto(group)), HasSubstr("saved       120.0 s, "));
}

TEST(JobDetails, ShowsTheRiskAndItsClippedPartOfARunningJobOnly) {
  v1::JobState job;
  job.set_state("running");
  job.set_risk(0.1512);
  job.set_risk_clip(0.02);
  EXPECT_THAT(JobDetails(job), HasSubstr("risk r  0.151 of the batch, 0.020 of "
                                         "it by clipping\n"));
  job.clear_risk();
  job.set_state("ended");
  EXPECT_THAT(JobDetails(job), Not(HasSubstr("risk")));
}

TEST_F(AdminTest, APinIsSetShownAndTakenBack) {
  Form();
  Vote({5, 5}, 30);
  const Outcome pin = Admin({"pin", "myjob", "TERNARY", "--levels", "7"});
  EXPECT_EQ(pin.exit_code, 0) << pin.err;
  EXPECT_THAT(pin.out, HasSubstr("pinned to TERNARY 7 levels\n"));
  EXPECT_EQ(PinOfJob(),
            (Pin{protocol::Mode::kTernary, protocol::Codec::kLevels7}));
  EXPECT_THAT(Admin({"jobs"}).out, HasSubstr("TERNARY 7 levels\n"));
  EXPECT_EQ(Admin({"pin", "myjob", "FULL", "--codec=bf16"}).exit_code, 0);
  EXPECT_EQ(PinOfJob(), (Pin{protocol::Mode::kFull, protocol::Codec::kBf16}));
  EXPECT_EQ(Admin({"pin", "myjob", "COMPACTED"}).exit_code, 0);
  EXPECT_EQ(PinOfJob(),
            (Pin{protocol::Mode::kCompacted, protocol::Codec::kFp32}));
  const Outcome unpin = Admin({"unpin", "myjob"});
  EXPECT_EQ(unpin.exit_code, 0) << unpin.err;
  EXPECT_THAT(unpin.out, HasSubstr("left to the policy\n"));
  EXPECT_FALSE(PinOfJob().has_value());
}

TEST_F(AdminTest, AJobIsForgottenWhenNobodyOfItIsInSight) {
  Form();
  const Outcome early = Admin({"forget", "myjob"});
  EXPECT_EQ(early.exit_code, 1);
  EXPECT_THAT(early.err, HasSubstr("has 2 live ranks"));
  for (const StreamId stream : streams_) driver_->OnClosed(stream, "cut");
  const Outcome forget = Admin({"forget", "myjob"});
  EXPECT_EQ(forget.exit_code, 0) << forget.err;
  EXPECT_THAT(forget.out, HasSubstr("forgot the state of job myjob"));
  EXPECT_THAT(Admin({"forget", "myjob/1"}).err,
              HasSubstr("a job is forgotten with all its models; write myjob"));
}

TEST_F(AdminTest, APinThatIsNotInForceSaysWhy) {
  Form();
  Vote({}, 100);
  EXPECT_THAT(Admin({"pin", "myjob", "COMPACTED"}).out,
              HasSubstr("FULL fp32  pinned to COMPACTED fp32  no masks voted: "
                        "all elements are sent; pinned to COMPACTED fp32, not "
                        "in force: no mask set is agreed"));
}

TEST_F(AdminTest, JsonIsTheMessageOfTheService) {
  Form();
  const Outcome json = Admin({"--json", "job", "myjob"});
  v1::JobState job;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json.out, &job).ok())
      << json.out;
  EXPECT_EQ(job.DebugString(),
            ToProto(driver_->Snapshot().groups.at(0)).DebugString());
}

TEST_F(AdminTest, WhatTheCoordinatorRefusesIsSaidInItsWords) {
  for (const char* command : {"job", "watch", "unpin"}) {
    const Outcome refused = Admin({command, "nobody"});
    EXPECT_EQ(refused.exit_code, 1) << command;
    EXPECT_THAT(refused.err,
                MatchesRegex("coordinator 127.0.0.1:[0-9]+: .*job 'nobody'.*"
                             "pactrain-admin jobs.*"));
  }
}

TEST_F(AdminTest, ACoordinatorThatIsGoneIsSaidToBeUnreachable) {
  server_->Stop();
  for (const char* command : {"job", "watch", "unpin"}) {
    const Outcome gone = Admin({command, "myjob"});
    EXPECT_EQ(gone.exit_code, 1) << command;
    EXPECT_THAT(gone.err, HasSubstr("cannot be reached ("));
    EXPECT_THAT(gone.err, HasSubstr("--coordinator"));
  }
}

TEST_F(AdminTest, WhichWayGradientsGoIsShownByNode) {
  Form();
  EXPECT_THAT(Admin({"job", "myjob"}).out,
              ::testing::Not(HasSubstr("GRADIENTS BY")));
  protocol::StepReport report;
  report.group = {"myjob", 0};
  report.generation = 1;
  report.device_path = {"device", "not by NCCL: rank 1 left", 12, 3};
  driver_->OnMessage(streams_[0], report);
  EXPECT_THAT(
      Admin({"job", "myjob"}).out,
      HasSubstr("\nAGENT  GRADIENTS BY  SUMMED BY NCCL  FALLBACKS  WHY\n"
                "node0  device        12              3          not by NCCL: "
                "rank 1 left\n"));
  EXPECT_THAT(Admin({"job", "myjob", "--json"}).out,
              ::testing::AllOf(HasSubstr("nodePaths"),
                               HasSubstr("not by NCCL: rank 1 left")));
}

TEST_F(AdminTest, MasksAndDecisionsOfAJobAreShown) {
  Form();
  EXPECT_EQ(Admin({"masks", "myjob"}).out,
            "job    myjob\nmasks  nobody has voted for any\n");
  Vote({5, 5}, 30);
  EXPECT_THAT(Admin({"masks", "myjob"}).out,
              HasSubstr("keep        30.0 %\nmasks       settled"));
  EXPECT_THAT(Admin({"masks", "myjob"}).out,
              HasSubstr("each keeps  not told by rank 0 at agent node0: "));
  protocol::StepReport report;
  report.group = {"myjob", 0};
  report.generation = 1;
  report.committed_step = report.committed_count = 1;
  report.sent_bytes = 1'000'000;
  report.sent_dense_bytes = 3'000'000;
  report.keep_by_parameter = {{5, 5}, {{"fc.weight", 12, 40}}, 2, 18, 60};
  driver_->OnMessage(streams_[0], report);
  EXPECT_THAT(Admin({"masks", "myjob"}).out,
              HasSubstr("\nPARAMETER   KEPT  OF  KEEP\n"
                        "fc.weight   12    40  30.0 %\n"
                        "(2 others)  18    60  30.0 %\n"));
  EXPECT_THAT(Admin({"job", "myjob"}).out,
              HasSubstr("time not known (no FULL step was measured, and links "
                        "show no rate), and 2.0 of 3.0 MB between sites, "
                        "since "));
  const std::string shown = Admin({"decisions", "myjob"}).out;
  EXPECT_THAT(shown, HasSubstr("2        COMPACTED fp32  prepared\n"));
  EXPECT_THAT(shown, HasSubstr("1        FULL fp32       in force\n"));
  EXPECT_THAT(Admin({"decisions", "myjob", "--why"}).out,
              ::testing::AllOf(HasSubstr("in force  generation 1"),
                               HasSubstr("\nnow: ")));
}

}  // namespace
}  // namespace pactrain::coordinator
