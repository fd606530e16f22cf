// Real daemons and real trainers of the C ABI on loopback: three sites with one
// agent and two trainers each. What is killed, is killed with SIGKILL.
#include <signal.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/cluster/child.h"
#include "tests/e2e/cluster/relay.h"
#include "trainer/pactrain.h"

namespace pactrain::e2e {
namespace {

using ::testing::HasSubstr;

// Where Bazel lays them for a test.
constexpr char kCoordinator[] = "coordinator/pactrain-coordinator";
constexpr char kAgent[] = "agent/pactrain-agent";
constexpr char kAdmin[] = "coordinator/admin/pactrain-admin";
constexpr char kTrainer[] = "tests/e2e/cluster/sum_trainer";

constexpr int kSites = 3;
constexpr uint32_t kWorld = 6;
constexpr int kForever = 1000000;

// The word after `key` in a daemon's line "listening ... key=value ...".
std::string ValueOf(const std::string& line, const std::string& key) {
  const size_t at = line.find(key + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size() + 1;
  return line.substr(begin, line.find(' ', begin) - begin);
}

class ClusterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = "/tmp/pactrain-e2e-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    StartCoordinator("127.0.0.1:0");
    for (int site = 0; site < kSites; ++site) {
      agents_.push_back(nullptr);
      StartAgent(site);
    }
  }
  void TearDown() override {
    trainers_.clear();
    agents_.clear();
    coordinator_.reset();
    std::filesystem::remove_all(folder_);
  }

  void StartCoordinator(const std::string& listen,
                        const std::vector<std::string>& more = {}) {
    std::vector<std::string> argv = {kCoordinator, "--insecure-local",
                                     "--listen", listen, "--listen-metrics",
                                     "127.0.0.1:0", "--state-dir",
                                     folder_ + "/state", "--cluster", "e2e",
                                     // The sums are checked bit for bit.
                                     "--risk", "exact"};
    argv.insert(argv.end(), more.begin(), more.end());
    coordinator_ = std::make_unique<Child>(argv);
    const auto line = coordinator_->WaitForLine("listening");
    ASSERT_TRUE(line.has_value()) << "the coordinator did not start";
    coordinator_address_ = ValueOf(*line, "grpc");
    ASSERT_NE(coordinator_address_, "") << *line;
  }

  std::string SocketOf(int site) const {
    return absl::StrCat(folder_, "/agent-", site, ".sock");
  }
  // Returns the data address.
  std::string StartAgent(int site, const std::vector<std::string>& more = {}) {
    std::vector<std::string> argv = {kAgent,
                                     "--insecure-local",
                                     "--name",
                                     absl::StrCat("agent-", site),
                                     "--site",
                                     absl::StrCat("site-", site),
                                     "--coordinator",
                                     coordinator_address_,
                                     "--socket",
                                     "unix:" + SocketOf(site),
                                     "--step-deadline",
                                     "12s",
                                     "--sum-threads",
                                     absl::StrCat(1 + site)};
    argv.insert(argv.end(), more.begin(), more.end());
    agents_[site] = std::make_unique<Child>(argv);
    const auto line = agents_[site]->WaitForLine("listening");
    EXPECT_TRUE(line.has_value()) << "agent " << site << " did not start";
    return ValueOf(line.value_or(""), "data");
  }

  // Two trainers for each site, in rank order; `more` arguments of theirs.
  void Launch(const std::string& job, int steps,
              const std::vector<std::string>& more = {}) {
    trainers_.clear();
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      const int site = static_cast<int>(rank) / 2;
      std::vector<std::string> argv = {
          kTrainer,           "unix:" + SocketOf(site), job,
          absl::StrCat(rank), absl::StrCat(kWorld),     absl::StrCat(steps)};
      argv.insert(argv.end(), more.begin(), more.end());
      trainers_.push_back(std::make_unique<Child>(argv));
    }
  }
  void ExpectAllDone() {
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      EXPECT_EQ(trainers_[rank]->Wait(), 0)
          << "rank " << rank << ": " << LastLine(rank);
    }
  }
  std::string LastLine(uint32_t rank) const {
    const auto& lines = trainers_[rank]->lines();
    return lines.empty() ? "" : lines.back();
  }
  // Ranks `first` to `last` end with one of `codes`, soon.
  void ExpectErrors(const std::vector<int>& codes, int first, int last) {
    const absl::Duration start = base::MonotonicNow();
    for (int rank = first; rank <= last; ++rank) {
      const auto code = trainers_[rank]->Wait(absl::Seconds(14));
      ASSERT_TRUE(code.has_value()) << "rank " << rank << " hangs";
      EXPECT_THAT(codes, ::testing::Contains(*code))
          << "rank " << rank << ": " << LastLine(rank);
      EXPECT_THAT(LastLine(rank), HasSubstr(absl::StrCat("error ", *code)));
    }
    EXPECT_LT(base::MonotonicNow() - start, absl::Seconds(14));
  }
  void ExpectTrains(const std::string& job) {
    Launch(job, 5);
    ExpectAllDone();
  }

  std::string folder_;
  std::string coordinator_address_;
  std::unique_ptr<Child> coordinator_;
  std::vector<std::unique_ptr<Child>> agents_;
  std::vector<std::unique_ptr<Child>> trainers_;
};

TEST_F(ClusterTest, SumsAreExactFirstFullThenCompacted) {
  Launch("sums", 40);
  ExpectAllDone();
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    std::string modes;
    for (const std::string& line : trainers_[rank]->lines()) {
      if (line.rfind("step ", 0) != 0) continue;
      modes += line.find("COMPACTED") != std::string::npos ? 'C' : 'F';
    }
    EXPECT_THAT(modes, ::testing::MatchesRegex("F+C+")) << "rank " << rank;
    EXPECT_EQ(modes.size(), 40u);
  }
}

TEST_F(ClusterTest, RootsFollowTheSitesRates) {
  coordinator_->Kill();
  StartCoordinator(coordinator_address_,
                   {"--site-rates", "site-0=125mbit,site-1=150mbit"});
  Launch("uneven", 20);
  ASSERT_TRUE(trainers_[0]->WaitForLine("step 2 "));
  Child show({kAdmin, "job", "uneven", "--coordinator", coordinator_address_});
  const auto plan = show.WaitForLine("the root takes turns");
  ASSERT_TRUE(plan.has_value());
  // Who is not named is as fast as the fastest.
  EXPECT_THAT(*plan, HasSubstr("site-0 6/32, site-1 13/32, site-2 13/32"));
  ExpectAllDone();
}

TEST_F(ClusterTest, AnEgressLimitHolds) {
  constexpr double kBytesPerSecond = 0.5e6;
  constexpr double kBurst = 64 << 10;
  // Site 0 is the root of all chunks.
  coordinator_->Kill();
  StartCoordinator(coordinator_address_,
                   {"--links", "site-0:site-1,site-0:site-2"});
  agents_[0]->Signal(SIGTERM);
  ASSERT_EQ(agents_[0]->Wait(), 0);
  StartAgent(0, {"--egress-limit", "site-1=4mbit"});
  Launch("limited", 12);
  ASSERT_TRUE(trainers_[0]->WaitForLine("step "));
  const absl::Duration first = base::MonotonicNow();
  ExpectAllDone();
  // COMPACTED, site 0 sends the sum of each bucket down to site 1: 3 of 10 of
  // 271,002 elements. FULL is more. A slow machine only makes it later.
  const double bytes = 11 * 0.29 * 271002 * 4 - kBurst;
  EXPECT_GT(base::MonotonicNow() - first,
            absl::Seconds(bytes / kBytesPerSecond));
}

TEST_F(ClusterTest, StoppedAgentsLeaveNothingBehind) {
  ExpectTrains("tidy");
  for (int site = 0; site < kSites; ++site) {
    agents_[site]->Signal(SIGTERM);
    EXPECT_EQ(agents_[site]->Wait(), 0);
    EXPECT_FALSE(std::filesystem::exists(SocketOf(site)));
  }
}

TEST_F(ClusterTest, KilledTrainerEndsTheStepWithAnErrorForAllOthers) {
  Launch("trainer-dies", kForever);
  ASSERT_TRUE(trainers_[5]->WaitForLine("step 3"));
  trainers_[5]->Kill();
  ExpectErrors({PT_STEP_NOT_APPLIED, PT_RESYNC_REQUIRED}, 0, 4);
  EXPECT_THAT(LastLine(0), HasSubstr("rank 5"));
  ExpectTrains("trainer-dies");
}

TEST_F(ClusterTest, KilledAgentEndsTheStepAndItsRestartTrainsAgain) {
  Launch("agent-dies", kForever);
  ASSERT_TRUE(trainers_[0]->WaitForLine("step 3"));
  agents_[2]->Kill();
  ExpectErrors({PT_STEP_NOT_APPLIED, PT_RESYNC_REQUIRED}, 0, 3);
  ExpectErrors({PT_AGENT_UNRESPONSIVE}, 4, 5);
  EXPECT_FALSE(std::filesystem::exists(SocketOf(2)));
  StartAgent(2);
  ExpectTrains("agent-dies");
}

TEST_F(ClusterTest, StoppedAgentTellsItsTrainersAndTheOthers) {
  Launch("agent-stops", kForever);
  ASSERT_TRUE(trainers_[0]->WaitForLine("step 3"));
  agents_[0]->Signal(SIGTERM);
  ExpectErrors({PT_STEP_NOT_APPLIED, PT_RESYNC_REQUIRED}, 2, 5);
  ExpectErrors({PT_AGENT_UNRESPONSIVE}, 0, 1);
  EXPECT_EQ(agents_[0]->Wait(), 0);
}

TEST_F(ClusterTest, KilledCoordinatorStopsNothingAndItsRestartResumes) {
  Launch("coordinator-dies", kForever);
  ASSERT_TRUE(trainers_[0]->WaitForLine("COMPACTED"));
  coordinator_->Kill();
  for (int step = 0; step < 20; ++step) {
    ASSERT_TRUE(trainers_[3]->WaitForLine("ok"));
  }
  StartCoordinator(coordinator_address_);
  // The running job goes on, and a new one finds a coordinator.
  for (int step = 0; step < 20; ++step) {
    ASSERT_TRUE(trainers_[3]->WaitForLine("COMPACTED ok"));
  }
  auto running = std::move(trainers_);
  ExpectTrains("after-restart");
  ASSERT_TRUE(running[3]->WaitForLine("COMPACTED ok"));
}

TEST_F(ClusterTest, DamagedAndBrokenConnectionsCostRetriesNeverASum) {
  Relay relay;
  agents_[2]->Signal(SIGTERM);
  ASSERT_EQ(agents_[2]->Wait(), 0);
  relay.SetTarget(StartAgent(2, {"--advertise-address", relay.address()}));
  Launch("damage", 60);
  for (int step = 5; step < 56; step += 10) {
    ASSERT_TRUE(trainers_[4]
                    ->WaitForLine(absl::StrCat("step ", step, " "))
                    .has_value());
    if (step % 20 == 5) {
      relay.DamageNext();
    } else {
      relay.BreakAll();
    }
  }
  ExpectAllDone();
}

TEST_F(ClusterTest, UnreachableCoordinatorIsATypedErrorThatNamesIt) {
  coordinator_->Kill();
  Child trainer(
      {kTrainer, "unix:" + SocketOf(1), "job", "0", "1", "1", "1500"});
  EXPECT_EQ(trainer.Wait(), PT_COORDINATOR_UNAVAILABLE);
  const std::string& error = trainer.lines().back();
  EXPECT_THAT(error, HasSubstr("coordinator " + coordinator_address_));
  EXPECT_THAT(error, HasSubstr("cannot be reached"));
}

TEST_F(ClusterTest, SecondAgentOnASocketIsRefused) {
  Child second({kAgent, "--insecure-local", "--name", "second", "--coordinator",
                coordinator_address_, "--socket", "unix:" + SocketOf(0)});
  EXPECT_EQ(second.Wait(), 1);
  ExpectTrains("first-goes-on");
}

TEST_F(ClusterTest, TwoJobsDoNotDisturbEachOther) {
  Launch("one", kForever);
  auto one = std::move(trainers_);
  Launch("two", kForever);
  ASSERT_TRUE(trainers_[0]->WaitForLine("step 2"));
  ASSERT_TRUE(one[0]->WaitForLine("step 2"));
  trainers_[1]->Kill();
  ExpectErrors({PT_STEP_NOT_APPLIED, PT_RESYNC_REQUIRED}, 2, 5);
  for (int step = 0; step < 10; ++step) {
    ASSERT_TRUE(one[5]->WaitForLine("ok"));
  }
}

// It goes into the sum, as everywhere where sums are plain; who sent it is in
// the audit log. Of the first 80 steps ten are measured, of the others two.
TEST_F(ClusterTest, sec_poison_norm) {
  Launch("poisoned", 100, {"30000", "3", "80"});
  ExpectAllDone();
  std::optional<std::string> line;
  const absl::Duration end = base::MonotonicNow() + absl::Minutes(2);
  while (!line && base::MonotonicNow() < end) {
    Child audit({kAdmin, "audit", "--coordinator", coordinator_address_});
    line = audit.WaitForLine("the gradients of");
    EXPECT_EQ(audit.Wait(), 0);
  }
  ASSERT_TRUE(line.has_value());
  EXPECT_THAT(*line, HasSubstr("gradient alarm"));
  EXPECT_THAT(*line, HasSubstr("job poisoned"));
  EXPECT_THAT(*line, HasSubstr("ranks 2, 3 (agent 'agent-1', site 'site-1')"));
  EXPECT_THAT(*line, ::testing::ContainsRegex("at step (8[0-9]|9[0-9]|100):"));
}

}  // namespace
}  // namespace pactrain::e2e
