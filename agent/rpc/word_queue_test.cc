#include "agent/rpc/word_queue.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/identity_budgets.h"
#include "base/status_matchers.h"
#include "protocol/limits.h"
#include "protocol/proto_convert.h"

namespace pactrain::agent {
namespace {

using protocol::AgentMessage;
using protocol::LocalTrainers;
using protocol::StepReport;

protocol::GroupId GroupOf(int number) {
  return {"job", static_cast<uint16_t>(number)};
}

LocalTrainers LocalOf(int group, uint64_t revision, int trainers = 1) {
  LocalTrainers local;
  local.group = GroupOf(group);
  local.revision = revision;
  for (int rank = 0; rank < trainers; ++rank) {
    protocol::TrainerJoined joined;
    joined.group = local.group;
    joined.generation = 3;
    joined.trainer.rank = rank;
    joined.trainer.attach_id = {revision, static_cast<uint64_t>(rank) + 1};
    joined.trainer.launch = "a launch of some length";
    joined.trainer.model_summary = std::string(100, 'm');
    joined.trainer.proof.bytes.fill(1);
    local.here.push_back(joined);
    protocol::MaskVote vote;
    vote.group = local.group;
    vote.rank = rank;
    vote.mask_digest = {revision, 1};
    vote.layout_digest = {revision, 2};
    vote.after_steps = revision;
    vote.moved = std::string(60, 'v');
    local.votes.push_back(vote);
  }
  return local;
}

StepReport ReportOf(int group, uint64_t step) {
  StepReport report;
  report.group = GroupOf(group);
  report.generation = 3;
  report.committed_step = step;
  report.noise.push_back({.step = step});
  return report;
}

protocol::PrepareAnswer AnswerOf(int group) {
  return {GroupOf(group), 3, 2, false, "another mask set"};
}

// How the words that come now begin: "L3" of group 3, with its revision.
std::vector<std::string> Told(WordQueue& queue, absl::Duration now,
                              size_t bytes = 0) {
  std::vector<std::string> told;
  while (const auto word = queue.Next(now)) {
    queue.Told(bytes, now);
    if (const auto* local = std::get_if<LocalTrainers>(&*word)) {
      told.push_back(
          absl::StrCat("L", local->group.model, " ", local->revision));
    } else if (const auto* report = std::get_if<StepReport>(&*word)) {
      told.push_back(absl::StrCat("R", report->group.model, " ",
                                  report->committed_step, " noise ",
                                  report->noise.size()));
    } else if (std::holds_alternative<protocol::PrepareAnswer>(*word)) {
      told.push_back("A");
    } else {
      told.push_back("H");
    }
  }
  return told;
}

constexpr absl::Duration kNow = absl::Seconds(100);

// A queue that tells nothing more for a while.
WordQueue Full() {
  WordQueue queue;
  for (int i = 0; i < 2; ++i) {
    queue.Add(LocalOf(99, 1));
    queue.Next(kNow);
    queue.Told(protocol::kMaxBytesAtOnce, kNow);
  }
  return queue;
}

using Words = std::vector<std::string>;

TEST(WordQueue, WhatHasRoomIsToldAtOnce) {
  WordQueue queue;
  queue.Add(LocalOf(1, 1));
  EXPECT_EQ(Told(queue, kNow), Words{"L1 1"});
  queue.Add(LocalOf(1, 2));
  queue.Add(ReportOf(1, 7));
  EXPECT_EQ(Told(queue, kNow), (Words{"L1 2", "R1 7 noise 1"}));
  EXPECT_EQ(queue.next_at(), std::nullopt);
}

TEST(WordQueue, WhatWaitsIsToldOnceAsItIsByThen) {
  WordQueue queue = Full();
  queue.Add(LocalOf(1, 1));
  queue.Add(ReportOf(1, 7));
  queue.Add(LocalOf(2, 2));
  queue.Add(LocalOf(1, 3));
  queue.Add(ReportOf(1, 8));
  EXPECT_EQ(Told(queue, kNow), Words{});
  ASSERT_TRUE(queue.next_at().has_value());
  EXPECT_GT(*queue.next_at(), kNow);
  EXPECT_EQ(Told(queue, kNow + absl::Seconds(60)),
            (Words{"R1 8 noise 2", "L1 3", "L2 2"}));
}

TEST(WordQueue, AReportTakesAlongWhatIsSaidButOnce) {
  WordQueue queue = Full();
  StepReport first = ReportOf(1, 1);
  first.keep_by_parameter.emplace();
  queue.Add(first);
  for (uint64_t step = 2; step < 40; ++step) queue.Add(ReportOf(1, step));
  const auto word = queue.Next(kNow + absl::Seconds(60));
  const auto& report = std::get<StepReport>(*word);
  EXPECT_TRUE(report.keep_by_parameter.has_value());
  ASSERT_EQ(report.noise.size(), protocol::kMaxNoiseSamples);
  EXPECT_EQ(report.noise.back().step, 39u);
  // Of another generation: nothing of it.
  queue.Add(first);
  StepReport next = ReportOf(1, 1);
  next.generation = 4;
  queue.Add(next);
  EXPECT_EQ(Told(queue, kNow + absl::Seconds(60)), Words{"R1 1 noise 1"});
}

TEST(WordQueue, AnAnswerWaitsForNothingAndItsVotesComeBeforeIt) {
  WordQueue queue = Full();
  queue.Add(LocalOf(2, 1));
  queue.Add(LocalOf(1, 2));
  queue.Add(AnswerOf(1));
  queue.Add(protocol::Heartbeat{});
  queue.Add(LocalOf(1, 3));  // Also a newer one.
  queue.Add(AnswerOf(3));
  EXPECT_EQ(*queue.next_at(), absl::ZeroDuration());
  EXPECT_EQ(Told(queue, kNow), (Words{"L1 3", "A", "H", "A"}));
  EXPECT_EQ(Told(queue, kNow + absl::Seconds(60)), Words{"L2 1"});
}

TEST(WordQueue, WordsOfAStreamThatBrokeAreForgottenButNotThePace) {
  WordQueue queue = Full();
  queue.Add(AnswerOf(1));
  queue.Add(LocalOf(1, 1));
  queue.Clear();
  queue.Add(LocalOf(2, 1));
  EXPECT_EQ(Told(queue, kNow), Words{});
}

struct Load {
  int agents;
  int groups;  // Of each agent; models of a job.
  int trainers;
  int steps_per_second;
};

// All agents of a job key, with words of real sizes, against the coordinator's
// own budgets. As docs/security.md says.
class WordQueueLoadTest : public testing::TestWithParam<Load> {};

TEST_P(WordQueueLoadTest, sec_limits_AnHonestAgentIsNeverShutOut) {
  const Load load = GetParam();
  const base::IdentityBudgets::Limits one = {
      .of = "bytes",
      .at_once = protocol::kMaxBytesAtOnce,
      .per_second = protocol::kMaxBytesPerSecond,
      .shut_out = absl::Seconds(10)};
  base::IdentityBudgets::Limits all = one;
  all.at_once *= protocol::kIdentitiesOfAJobKey;
  all.per_second *= protocol::kIdentitiesOfAJobKey;
  base::IdentityBudgets of_one(one);
  base::IdentityBudgets of_all(all);

  constexpr absl::Duration kPiece = absl::Milliseconds(20);
  constexpr absl::Duration kStart = absl::Seconds(2);
  constexpr absl::Duration kEnd = absl::Seconds(80);
  const auto bytes_of = [](const AgentMessage& word) {
    return protocol::ToProto(word).ByteSizeLong();
  };
  std::vector<size_t> bytes_of_local;  // By trainers.
  for (int trainers = 0; trainers <= load.trainers; ++trainers) {
    bytes_of_local.push_back(bytes_of(LocalOf(1, 1000, trainers)));
  }
  const size_t bytes_of_report = 1024;
  std::vector<WordQueue> queues;
  std::map<std::pair<int, int>, absl::Duration> told_at;
  absl::Duration longest = absl::ZeroDuration();
  uint64_t revision = 0;
  for (absl::Duration now = kNow; now < kNow + kEnd; now += kPiece) {
    // All agents and trainers are killed halfway and start again.
    const absl::Duration since = (now - kNow) % (kEnd / 2);
    const auto every = [&](int64_t ms) {
      return absl::ToInt64Milliseconds(since) % ms < 20;
    };
    if (since < kPiece) {
      queues = std::vector<WordQueue>(load.agents);
      told_at.clear();
    }
    const bool starts = since < kStart;
    const int trainers =
        starts ? 1 + static_cast<int>(load.trainers * (since / kStart))
               : load.trainers;
    const bool changes = starts ? every(2000 / load.trainers)
                                : every(1000 / load.steps_per_second);
    ++revision;
    for (int a = 0; a < load.agents; ++a) {
      // As soon as it knows.
      if (!starts) queues[a].SetAgents(load.agents);
      for (int g = 0; g < load.groups; ++g) {
        if (changes) queues[a].Add(LocalOf(g, revision, 0));
        if (every(500)) queues[a].Add(ReportOf(g, revision));
      }
      while (const auto next = queues[a].Next(now)) {
        const auto* local = std::get_if<LocalTrainers>(&*next);
        const size_t bytes =
            local != nullptr ? bytes_of_local[trainers] : bytes_of_report;
        queues[a].Told(bytes, now);
        const uint64_t counted = bytes + protocol::kBytesOfMessage;
        ASSERT_OK(of_one.Take(absl::StrCat(a), now, nullptr, counted));
        ASSERT_OK(of_all.Take("all", now, nullptr, counted));
        if (local == nullptr) continue;
        const auto [it, first] =
            told_at.try_emplace({a, local->group.model}, now);
        if (first) continue;
        longest = std::max(longest, now - std::exchange(it->second, now));
      }
    }
  }
  EXPECT_EQ(told_at.size(), static_cast<size_t>(load.agents * load.groups));
  // Nobody has to wait for the others.
  EXPECT_LT(longest, absl::Seconds(4));
}

INSTANTIATE_TEST_SUITE_P(All, WordQueueLoadTest,
                         testing::Values(Load{1, 1, 64, 50}, Load{1, 6, 64, 12},
                                         Load{1, 240, 4, 10},
                                         Load{64, 1, 16, 50},
                                         Load{64, 16, 16, 2}));

}  // namespace
}  // namespace pactrain::agent
