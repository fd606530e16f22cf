#include "coordinator/page/shown_groups.h"

#include "absl/strings/str_cat.h"
#include "coordinator/page/page_model.h"
#include "coordinator/page/test_snapshots.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ShownGroupsTest : public ::testing::Test {
 protected:
  void Add(const std::string& job, GroupPhase phase, double ended_seconds,
           int64_t since = 1000) {
    GroupSnapshot group = RunningGroup(job);
    group.phase = phase;
    if (phase != GroupPhase::kRunning) group.ended_seconds = ended_seconds;
    group.counted_since = absl::FromUnixSeconds(since);
    snapshot_.groups.push_back(std::move(group));
  }
  std::string Job(const std::string& id) {
    PageModel model({});
    model.Observe(snapshot_, std::nullopt, absl::Seconds(1000),
                  absl::UnixEpoch());
    return model.Job(id, 0);
  }

  StateSnapshot snapshot_;
};

TEST_F(ShownGroupsTest, WhatRunsComesBeforeWhatEndedAndNothingHiddenIsGone) {
  Add("a-first", GroupPhase::kEnded, 1001);
  Add("a-waits", GroupPhase::kWaiting, 5000);
  for (size_t i = 0; i + 2 < PageModel::kMaxGroups; ++i) {
    Add(absl::StrCat("b", i), GroupPhase::kFailed,
        static_cast<double>(1000 - i));
  }
  Add("train", GroupPhase::kRunning, 0);
  EXPECT_THAT(Job("train"), HasSubstr("\"id\":\"train\""));
  EXPECT_THAT(Job("a-waits"), HasSubstr("\"id\":\"a-waits\""));
  EXPECT_THAT(Job("b0"), HasSubstr("\"id\":\"b0\""));
  EXPECT_THAT(Job("a-first"), HasSubstr("\"hidden\":true"));
  EXPECT_THAT(Job("a-first"), Not(HasSubstr("gone")));
  EXPECT_THAT(Job("nobody"), HasSubstr("\"gone\":true"));
}

TEST_F(ShownGroupsTest, sec_page_JobsThatCameLaterHideNoneThatRuns) {
  for (size_t i = 0; i < PageModel::kMaxGroups; ++i) {
    Add(absl::StrCat("a", i), GroupPhase::kRunning, 0, 2000);
  }
  Add("train", GroupPhase::kRunning, 0, 1000);
  EXPECT_THAT(Job("train"), HasSubstr("\"id\":\"train\""));
}

}  // namespace
}  // namespace pactrain::coordinator
