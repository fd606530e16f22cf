#include "coordinator/page/page_model.h"

#include <malloc.h>

#include "absl/strings/str_cat.h"
#include "coordinator/page/json.h"
#include "coordinator/page/test_snapshots.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class PageModelTest : public ::testing::Test {
 protected:
  void Observe(StateSnapshot snapshot) {
    now_ += absl::Seconds(6);
    model_.Observe(std::move(snapshot), std::nullopt, now_,
                   absl::UnixEpoch() + now_);
  }

  PageModel model_{{0.08, false}};
  absl::Duration now_ = absl::Seconds(1000);
};

TEST(JsonWriterTest, NothingInATextMeansAnythingToHtmlOrJson) {
  JsonWriter json;
  json.Array();
  json.Text("</script>\"'&\\\n\x01\xff\xc3\xa9\xed\xa0\x80").End();
  EXPECT_EQ(json.Take(),
            "[\"\\u003c/script\\u003e\\u0022\\u0027\\u0026\\u005c\\u000a\\u0001"
            "\\ufffd\xc3\xa9\\ufffd\\ufffd\\ufffd\"]");
}

TEST(JsonWriterTest, ALongTextIsCutBetweenCharacters) {
  JsonWriter json;
  json.Array();
  json.Text(std::string(65536, 'x'), 8).Text("abc\xc3\xa9", 4).End();
  EXPECT_EQ(json.Take(), "[\"xxxxxxxx...\",\"abc...\"]");
}

TEST(JsonWriterTest, WhatIsNoNumberIsNull) {
  JsonWriter json;
  json.Array();
  json.Number(1.5).Number(std::optional<double>()).Number(kUnknown).End();
  EXPECT_EQ(json.Take(), "[1.5,null,null]");
}

TEST_F(PageModelTest, AJobShowsWhatTravelsWhyAndWhatItSaves) {
  Observe(RunningSnapshot());
  const std::string shown = model_.Overview(0);
  for (const char* part :
       {"\"id\":\"train\"", "\"mode\":\"COMPACTED fp32\"",
        "\"saved_bytes\":9000000000", "\"saved_seconds\":120",
        "\"saved_by\":\"full\"", "\"money\":0.72", "\"keep\":0.1",
        "\"agents\":2", "\"connected\":2"}) {
    EXPECT_THAT(shown, HasSubstr(part));
  }
}

TEST_F(PageModelTest, WithoutAPriceThereIsNoMoney) {
  PageModel model({});
  model.Observe(RunningSnapshot(), std::nullopt, now_, absl::UnixEpoch());
  EXPECT_THAT(model.Overview(0), HasSubstr("\"money\":null"));
}

TEST_F(PageModelTest, AnUnchangedJobIsNotSaidAgain) {
  Observe(RunningSnapshot());
  const uint64_t seen = model_.tick();
  Observe(RunningSnapshot());
  EXPECT_THAT(model_.Overview(seen), HasSubstr("\"jobs\":[]"));
  StateSnapshot more = RunningSnapshot();
  more.groups[0].committed_step = 8;
  Observe(more);
  EXPECT_THAT(model_.Overview(seen), HasSubstr("\"step\":8"));
  EXPECT_THAT(model_.Overview(seen), HasSubstr("\"full\":false"));
}

TEST_F(PageModelTest, WhoLooksAgainAfterAJobHasGoneGetsAll) {
  Observe(RunningSnapshot());
  const uint64_t seen = model_.tick();
  StateSnapshot none = RunningSnapshot();
  none.groups.clear();
  Observe(none);
  EXPECT_THAT(model_.Overview(seen), HasSubstr("\"full\":true"));
  EXPECT_THAT(model_.Job("train", 0), HasSubstr("\"gone\":true"));
}

TEST_F(PageModelTest, ATickOfAnotherCoordinatorBringsAll) {
  Observe(RunningSnapshot());
  EXPECT_THAT(model_.Overview(77), HasSubstr("\"full\":true"));
  EXPECT_THAT(model_.Job("train", 77), HasSubstr("\"full\":true"));
}

TEST_F(PageModelTest, TheTimelineHasEachModeWithItsReason) {
  StateSnapshot full = RunningSnapshot();
  full.groups[0].in_force =
      protocol::Decision{1,  protocol::Mode::kFull, protocol::Codec::kFp32, {},
                         {}, "no rank has masks"};
  Observe(full);
  Observe(RunningSnapshot());
  EXPECT_THAT(
      model_.Job("train", 0),
      HasSubstr("\"mode\":\"FULL fp32\",\"version\":1,\"reason\":\"no rank has "
                "masks\"},{\"at\":1012,\"before\":false,\"mode\":\"COMPACTED "
                "fp32\",\"version\":2,"));
}

TEST_F(PageModelTest, TheTimelineHasAlsoAFirstModeTooShortToBeSeen) {
  Observe({});
  StateSnapshot running = RunningSnapshot();
  running.groups[0].generation->decision.version = 1;
  Observe(running);
  EXPECT_THAT(model_.Job("train", 0),
              HasSubstr("\"timeline\":[{\"at\":1012,\"before\":false,\"mode\":"
                        "\"FULL fp32\",\"version\":1,"));
}

// As after a restart: when it began is not in the journal.
TEST_F(PageModelTest, WhatThePageFindsAtItsStartBeganBeforeThat) {
  StateSnapshot running = RunningSnapshot();
  running.groups[0].generation->decision.version = 1;
  Observe(running);
  EXPECT_THAT(model_.Overview(0), HasSubstr("\"since_before\":true"));
  const std::string shown = model_.Job("train", 0);
  EXPECT_THAT(shown, HasSubstr("\"timeline\":[{\"at\":1006,\"before\":true,"
                               "\"mode\":\"COMPACTED fp32\""));
  EXPECT_THAT(shown, HasSubstr("\"this coordinator started; generation 1 was "
                               "there: 2 ranks"));
  running.groups[0].in_force->version = 3;
  Observe(running);
  EXPECT_THAT(model_.Overview(0), HasSubstr("\"since_before\":false"));
}

// A journal has decisions, not which one is in force: agents tell it with
// steps.
TEST_F(PageModelTest, WhatAgentsTellFirstAfterARestartBeganBeforeItToo) {
  StateSnapshot running = RunningSnapshot();
  const auto in_force = std::exchange(running.groups[0].in_force, std::nullopt);
  Observe(running);
  EXPECT_THAT(model_.Overview(0), HasSubstr("\"since_before\":true"));
  EXPECT_THAT(model_.Job("train", 0),
              HasSubstr("\"before\":true,\"mode\":\"unknown\""));
  running.groups[0].in_force = in_force;
  running.groups[0].in_force->version = 5;
  Observe(running);
  EXPECT_THAT(model_.Overview(0), HasSubstr("\"since_before\":true"));
  const std::string shown = model_.Job("train", 0);
  EXPECT_THAT(shown, HasSubstr("\"timeline\":[{\"at\":1006,\"before\":true,"
                               "\"mode\":\"COMPACTED fp32\",\"version\":5,"));
  EXPECT_THAT(shown, HasSubstr("\"mask_sets\":[{\"at\":1012,\"before\":true,"));
  running.groups[0].in_force->version = 6;
  Observe(running);
  EXPECT_THAT(model_.Overview(0), HasSubstr("\"since_before\":false"));
}

TEST_F(PageModelTest, PointsAreTheBytesOfTheTimeBetween) {
  Observe(RunningSnapshot());
  const uint64_t seen = model_.tick();
  StateSnapshot later = RunningSnapshot();
  later.groups[0].account.dense_bytes += 6000;
  later.groups[0].account.sent_bytes += 600;
  Observe(later);
  EXPECT_THAT(model_.Job("train", seen),
              HasSubstr("\"points\":{\"at\":[1012],\"dense\":[1000],\"wire\":["
                        "100]"));
}

TEST_F(PageModelTest, AStepsPredictionIsTheMetrics) {
  StateSnapshot running = RunningSnapshot();
  running.groups[0].account.mode_interval_seconds = {2, 1.25, 0};
  running.groups[0].account.mode_predicted_seconds = {3, 1.125, 0};
  Observe(running);
  const std::string shown = model_.Job("train", 0);
  EXPECT_THAT(shown, HasSubstr("\"measured\":[1.25],\"predicted\":[1.125]"));
  EXPECT_THAT(shown, HasSubstr("\"step_seconds\":[2,1.25,null],"
                               "\"predicted_seconds\":[3,1.125,null]"));
}

TEST_F(PageModelTest, WhatIsNotPredictedIsUnknown) {
  Observe(RunningSnapshot());
  EXPECT_THAT(model_.Job("train", 0), HasSubstr("\"predicted\":[null]"));
}

std::shared_ptr<const protocol::KeepByParameter> Keep(std::string name) {
  return std::make_shared<const protocol::KeepByParameter>(
      protocol::KeepByParameter{{1, 1}, {{std::move(name), 12, 40}}, 2, 3, 60});
}

TEST_F(PageModelTest, WhatEachParameterKeepsIsSaidOnceToEachViewer) {
  StateSnapshot running = RunningSnapshot();
  running.groups[0].keep_by_parameter = Keep("fc.weight");
  Observe(running);
  const uint64_t seen = model_.tick();
  Observe(running);
  const std::string rows =
      "\"parameters\":[[\"fc.weight\",12,40]],\"others\":[2,3,60]";
  EXPECT_THAT(model_.Job("train", 0), HasSubstr(rows));
  EXPECT_THAT(model_.Job("train", 0),
              HasSubstr("\"told\":true,\"teller\":\"rank 0 at agent a0\""));
  EXPECT_THAT(model_.Job("train", seen), Not(HasSubstr("\"parameters\"")));
  EXPECT_THAT(model_.Job("train", seen), HasSubstr("\"told\":true"));
  running.groups[0].keep_by_parameter = Keep("fc.weight");  // Told anew.
  Observe(running);
  EXPECT_THAT(model_.Job("train", seen), HasSubstr(rows));
}

TEST_F(PageModelTest, WhoHasNotToldWhatParametersKeepIsNamed) {
  Observe(RunningSnapshot());
  EXPECT_THAT(model_.Job("train", 0),
              HasSubstr("\"told\":false,\"teller\":\"rank 0 at agent a0\"}"));
}

TEST_F(PageModelTest, FailedAttemptsHaveTheirCauses) {
  StateSnapshot running = RunningSnapshot();
  running.groups[0].failed_attempts_total = 4;
  running.groups[0].failed_by_cause_total[0] = 1;
  running.groups[0].failed_by_cause_total[2] = 3;
  Observe(running);
  EXPECT_THAT(model_.Job("train", 0),
              HasSubstr("\"failed\":4,\"failed_of\":[[\"not told\",1],["
                        "\"stall\",3]]"));
}

TEST_F(PageModelTest, VotesAreCounted) {
  StateSnapshot running = RunningSnapshot();
  running.groups[0].votes = {4, 3, 2, 1};
  Observe(running);
  EXPECT_THAT(model_.Job("train", 0),
              HasSubstr("\"votes\":{\"for\":4,\"settling\":3,\"against\":2,"
                        "\"missing\":1}"));
}

TEST_F(PageModelTest, WhatHappenedIsToldInWords) {
  Observe(RunningSnapshot());
  StateSnapshot worse = RunningSnapshot();
  GroupSnapshot& group = worse.groups[0];
  group.failed_attempts_total += 2;
  group.account.fallbacks[0] += 1;
  group.account.mask_changes += 1;
  group.masks = MaskProgress{1, 2, 10, 40, "fc.weight 12 elements"};
  group.lost_agents = {"b0"};
  Observe(worse);
  const std::string shown = model_.Job("train", 0);
  EXPECT_THAT(shown, HasSubstr("2 attempts of steps failed"));
  EXPECT_THAT(shown, HasSubstr("fell back from COMPACTED to FULL"));
  EXPECT_THAT(shown, HasSubstr("most moved: fc.weight 12 elements"));
  EXPECT_THAT(shown, HasSubstr("no stream any more from agent b0"));
}

// "back, or replaced: c0" was told of an agent that stood, since its job ended.
TEST_F(PageModelTest, WhoIsLostIsNotBackBecauseTheJobEnded) {
  StateSnapshot worse = RunningSnapshot();
  Observe(worse);
  GroupSnapshot& group = worse.groups[0];
  group.lost_agents = {"b0"};
  Observe(worse);
  group.phase = GroupPhase::kFailed;
  group.reason = "agent b0 (site b) is lost";
  group.in_force.reset();
  worse.agents.pop_back();  // Forgotten.
  Observe(worse);
  std::string shown = model_.Job("train", 0);
  EXPECT_THAT(shown, Not(HasSubstr("back, or replaced")));
  EXPECT_THAT(shown, HasSubstr("\"lost\":[\"b0\"]"));
  EXPECT_THAT(shown,
              HasSubstr("\"kind\":\"fault\",\"text\":\"generation 1 ended: "
                        "agent b0 (site b) is lost"));
  EXPECT_THAT(model_.Overview(0), HasSubstr("\"agents\":2,\"connected\":1"));
  group.lost_agents.clear();
  Observe(worse);
  EXPECT_THAT(model_.Job("train", 0), HasSubstr("back, or replaced: b0"));
}

TEST_F(PageModelTest, WhatAPinDoesIsNoFault) {
  StateSnapshot now = RunningSnapshot();
  Observe(now);
  now.groups[0].account.fallbacks[1] += 1;
  Observe(now);
  EXPECT_THAT(
      model_.Job("train", 0),
      HasSubstr("\"kind\":\"pin\",\"text\":\"went back from COMPACTED"));
}

TEST_F(PageModelTest, WhatAMaskSetKeepsIsCorrected) {
  StateSnapshot now = RunningSnapshot();
  now.groups[0].elements = 0;
  Observe(now);
  EXPECT_THAT(model_.Job("train", 0), HasSubstr("\"keep\":1}"));
  now.groups[0].elements = 100;
  Observe(now);
  EXPECT_THAT(model_.Job("train", 0), HasSubstr("\"keep\":0.1}"));
}

TEST_F(PageModelTest, LinksOfAnEndedJobStayForTheirHour) {
  StateSnapshot now = RunningSnapshot();
  Observe(now);
  now.groups[0].phase = GroupPhase::kEnded;
  Observe(now);
  EXPECT_THAT(model_.Links(0),
              HasSubstr("\"from\":\"a\",\"to\":\"b\",\"rate\":0,"
                        "\"best\":10000000"));
}

TEST_F(PageModelTest, TheSlowestAgentComesFirst) {
  Observe(RunningSnapshot());
  EXPECT_THAT(model_.Job("train", 0),
              HasSubstr("\"slowest\":[{\"agent\":\"b0\",\"site\":\"b\","
                        "\"compute\":0.9,\"wait\":0.1},{\"agent\":\"a0\""));
}

TEST_F(PageModelTest, LinksShowRateUseAndThePlan) {
  Observe(RunningSnapshot());
  StateSnapshot later = RunningSnapshot();
  later.groups[0].links[0].sent_bytes += 30'000'000;
  Observe(later);
  const std::string shown = model_.Links(0);
  EXPECT_THAT(shown, HasSubstr("\"edges\":[[\"a\",\"b\"]]"));
  EXPECT_THAT(shown,
              HasSubstr("\"from\":\"a\",\"to\":\"b\",\"rate\":10000000"));
  EXPECT_THAT(shown, HasSubstr("\"used\":5000000,\"use\":0.5"));
}

TEST_F(PageModelTest, HostileNamesStayText) {
  StateSnapshot bad = RunningSnapshot();
  bad.groups[0].group.job = "<img src=x onerror=\"alert(1)\">\n";
  bad.groups[0].reason = std::string(65536, '<');
  bad.agents[0].agent = "</script><script>";
  bad.agents[0].connected = false;
  bad.groups[0].links[0].site = "\"><b>";
  bad.groups[0].keep_by_parameter = Keep("<img src=x onerror=\"alert(1)\">");
  bad.groups[0].node_paths = {{"a<b>", {"<torch>", "<script>"}}};
  Observe(bad);
  const std::string id = bad.groups[0].group.ToString();
  for (const std::string& shown :
       {model_.Overview(0), model_.Job(id, 0), model_.Links(0)}) {
    EXPECT_THAT(shown, Not(HasSubstr("<")));
    EXPECT_THAT(shown, Not(HasSubstr("\n")));
    EXPECT_LT(shown.size(), 40'000u);
  }
  EXPECT_THAT(model_.Job(id, 0), Not(HasSubstr("\"gone\"")));
}

TEST_F(PageModelTest, AJobShowsWhichWayGradientsLeaveGpus) {
  StateSnapshot there = RunningSnapshot();
  Observe(there);
  EXPECT_THAT(model_.Job("train", 0), HasSubstr("\"paths\":[]"));
  there.groups[0].node_paths = {{"a0", {"device", "rank 1 left", 12, 3}}};
  Observe(there);
  EXPECT_THAT(
      model_.Job("train", 0),
      HasSubstr("\"paths\":[[\"a0\",\"device\",12,3,\"rank 1 left\"]]"));
}

TEST_F(PageModelTest, AJobIsToldWhatIsWrongWithItAlone) {
  StateSnapshot lost = RunningSnapshot();
  lost.groups.push_back(RunningGroup("other"));
  for (GroupSnapshot& group : lost.groups) group.lost_agents = {"b0"};
  Observe(lost);
  EXPECT_THAT(model_.Overview(0), HasSubstr("\"found\":[{\"job\":\"train\""));
  EXPECT_THAT(model_.Job("other", 0),
              HasSubstr("\"found\":[{\"job\":\"other\""));
  EXPECT_THAT(model_.Job("other", 0), Not(HasSubstr("{\"job\":\"train\"")));
  EXPECT_THAT(model_.Links(0), Not(HasSubstr("\"found\":[{")));
}

TEST_F(PageModelTest, ALongNameIsCutAlikeWhereverItIsShown) {
  StateSnapshot bad = RunningSnapshot();
  bad.groups[0].group.job = std::string(64 << 10, 'x');
  bad.groups[0].lost_agents = {"b0"};
  Observe(bad);
  const std::string cut = std::string(100, 'x') + "...\"";
  for (const char* key : {"\"id\":\"", "\"job\":\""}) {
    EXPECT_THAT(model_.Overview(0), HasSubstr(key + cut));
  }
  EXPECT_THAT(model_.Links(0), HasSubstr("\"job\":\"" + cut));
}

// Every list at its bound. What is kept grows with jobs and agents.
TEST_F(PageModelTest, AnHourOf10JobsAnd100AgentsFitsInATenthOf32MiB) {
  const size_t before = mallinfo2().uordblks;
  PageModel model({0.08, false});
  for (int i = 0; i < 620; ++i) {
    StateSnapshot snapshot = LargeSnapshot(10, 100, i);
    now_ += kPointEvery;
    model.Observe(std::move(snapshot), std::nullopt, now_,
                  absl::UnixEpoch() + now_);
  }
  EXPECT_LT(mallinfo2().uordblks - before, (32u << 20) / 10);
  EXPECT_LT(model.Overview(0).size(), 40'000u);
  EXPECT_LT(model.Job("job0", 0).size(), 200'000u);
}

TEST_F(PageModelTest, OfMoreJobsThanMayBeShownTheNumberIs) {
  Observe(LargeSnapshot(PageModel::kMaxGroups + 3, 10, 0));
  EXPECT_THAT(model_.Overview(0), HasSubstr("\"hidden\":3"));
}

}  // namespace
}  // namespace pactrain::coordinator
