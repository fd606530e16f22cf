#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "agent/local/memory_limits.h"
#include "agent/local/memory_reserve.h"
#include "agent/local/memory_reserver.h"
#include "agent/local/memory_table.h"
#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

MemoryNow Now(uint64_t available, uint64_t private_bytes = 0) {
  return {AvailableMemory{available, "the machine"}, private_bytes};
}

TEST(MemoryReserve, IsSlotsResultSumAndFrames) {
  EXPECT_EQ(FullReserve(MemoryRegion{3, 100}), 600u);
  EXPECT_EQ(FullReserve({{3, 100}, {1, 10}}), 640u);
}

TEST(MemoryReserve, WhatIsThereAlreadyIsNotNeededAgain) {
  const std::vector<MemoryRegion> regions = {{2, 100}};
  EXPECT_OK(CheckReserve(regions, 0, Now(500)));
  EXPECT_FALSE(CheckReserve(regions, 0, Now(499)).ok());
  EXPECT_OK(CheckReserve(regions, 200, Now(300)));
  EXPECT_FALSE(CheckReserve(regions, 200, Now(299)).ok());
  EXPECT_OK(CheckReserve(regions, 200, Now(150, /*private_bytes=*/150)));
  // The agent's other memory is no step's.
  EXPECT_FALSE(CheckReserve(regions, 0, Now(299, 100'000)).ok());
}

TEST(MemoryReserve, ARefusalNamesTheBytesAndWhoseLimitTheyMeet) {
  const MemoryNow now = {AvailableMemory{70, "cgroup /job"}, 0};
  EXPECT_THAT(
      CheckReserve({{2, 100}}, 200, now),
      base::StatusIs(kExhausted,
                     AllOf(HasSubstr("2 trainers"), HasSubstr("500 bytes"),
                           HasSubstr("300 more"),
                           HasSubstr("cgroup /job has 70 available"))));
}

TEST(MemoryReserve, NothingIsRefusedWhereTheSystemTellsNothing) {
  EXPECT_OK(CheckReserve({{2, 100}}, 0, MemoryNow{}));
}

TEST(MemoryTable, TrainersOfARegionShareItsResultWhileOneLives) {
  MemoryTable table;
  ASSERT_OK_AND_ASSIGN(const TrainerBuffers one, table.Make(1, "r", 64));
  ASSERT_OK_AND_ASSIGN(const TrainerBuffers two, table.Make(2, "r", 64));
  ASSERT_OK_AND_ASSIGN(const TrainerBuffers other, table.Make(3, "s", 64));
  EXPECT_EQ(one.result, two.result);
  EXPECT_NE(one.slot, two.slot);
  EXPECT_NE(one.result, other.result);
  table.Release(1);
  EXPECT_EQ(table.Find(1).slot, nullptr);
  EXPECT_EQ(table.Find(2).result, two.result);
}

TEST(MemoryTable, ATrainerIsRefusedWhoseFullStepsWouldNotFit) {
  MemoryTable table([] { return Now(64 * 5 + 63); });
  ASSERT_OK_AND_ASSIGN(const TrainerBuffers one, table.Make(1, "r", 64));
  ASSERT_OK(one.slot->Reserve(64));
  ASSERT_OK(one.result->Reserve(64));
  EXPECT_EQ(table.full_reserve(), 64u * 4);
  // It needs as much again and the rest of the first one's: one byte too much.
  EXPECT_THAT(table.Make(2, "s", 64), base::StatusIs(kExhausted, testing::_));
  EXPECT_EQ(table.full_reserve(), 64u * 4);
  EXPECT_OK(table.Make(2, "r", 64));
  EXPECT_EQ(table.full_reserve(), 64u * 5);
}

TEST(MemoryTable, MoreThanTheMachineHasIsAnErrorNotACrash) {
  MemoryTable table;
  EXPECT_THAT(table.Make(1, "r", 1ull << 50),
              base::StatusIs(kExhausted, HasSubstr("available")));
}

// What is promised and has no pages yet is not taken for there.
TEST(MemoryTable, WhatIsNotReservedYetIsStillNeeded) {
  MemoryTable table([] { return Now(64 * 5 + 63); });
  ASSERT_OK(table.Make(1, "r", 64));
  ASSERT_OK(table.Make(2, "r", 64));
  EXPECT_THAT(table.Make(3, "r", 64), base::StatusIs(kExhausted, testing::_));
}

TEST(MemoryTable, SlotsOfALaunchHaveOneSize) {
  MemoryTable table;
  ASSERT_OK(table.Make(1, "r", 64));
  EXPECT_THAT(table.Make(2, "r", 128),
              base::StatusIs(absl::StatusCode::kFailedPrecondition,
                             HasSubstr("slots of 64 bytes")));
  EXPECT_EQ(table.Find(2).slot, nullptr);
}

uint64_t Pages(const SharedMemory& memory) {
  struct stat status = {};
  EXPECT_EQ(fstat(memory.fd(), &status), 0);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

// Making it must not keep the event loop, however large it is.
TEST(SharedMemoryTest, sec_large_slot_TakesItsPagesAPieceAtATime) {
  constexpr uint64_t kMany = 64 << 20, kPiece = 1 << 20;
  ASSERT_OK_AND_ASSIGN(
      const auto memory,
      SharedMemory::Create("slot", kMany, SharedMemory::TrainerMay::kOnlyRead));
  EXPECT_EQ(Pages(*memory), 0u);
  ASSERT_OK(memory->Reserve(kPiece));
  EXPECT_EQ(Pages(*memory), kPiece);
  EXPECT_EQ(memory->reserved(), kPiece);
  EXPECT_FALSE(memory->whole());
  ASSERT_OK(memory->Reserve(kMany));
  EXPECT_EQ(Pages(*memory), kMany);
  EXPECT_TRUE(memory->whole());
  EXPECT_OK(memory->Reserve(kPiece));
}

TEST(MemoryReserverTest, SaysFromAHandlerThatAllPagesAreThere) {
  asio::io_context io;
  MemoryReserver reserver(io);
  MemoryTable table;
  const uint64_t bytes = 2 * MemoryReserver::kPiece + 4096;
  ASSERT_OK_AND_ASSIGN(const TrainerBuffers one, table.Make(1, "r", bytes));
  ASSERT_OK_AND_ASSIGN(const TrainerBuffers two, table.Make(2, "r", bytes));
  int done = 0;
  for (const TrainerBuffers& buffers : {one, two}) {
    reserver.Reserve(buffers, [&, buffers](const absl::Status& status) {
      EXPECT_OK(status);
      EXPECT_TRUE(buffers.slot->whole());
      EXPECT_TRUE(buffers.result->whole());
      ++done;
    });
  }
  EXPECT_EQ(done, 0);  // Nothing is called but by the loop.
  const auto work = asio::make_work_guard(io);
  while (done < 2) io.run_one();
  EXPECT_EQ(Pages(*two.slot), bytes);
}

TEST(MemoryReserverTest, GivesUpWhatNobodyHoldsAnyMoreAndEndsInTheMidst) {
  asio::io_context io;
  MemoryTable table;
  {
    MemoryReserver reserver(io);
    const auto never = [](const absl::Status&) { ADD_FAILURE(); };
    ASSERT_OK(table.Make(1, "r", 64).status());
    reserver.Reserve(TrainerBuffers(), never);
    ASSERT_OK_AND_ASSIGN(const TrainerBuffers two,
                         table.Make(2, "s", 64 * MemoryReserver::kPiece));
    reserver.Reserve(two, never);
    reserver.Free(table.Release(1));
  }
  io.run();
  EXPECT_EQ(table.Find(1).slot, nullptr);
}

// A system's files below a folder of the test's own.
class MemoryLimitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", test->name());
    Write("/proc/meminfo", "MemTotal: 2000 kB\nMemAvailable:    1000 kB\n");
    Write("/proc/self/status", "Name:\tagent\nRssAnon:\t      12 kB\n");
  }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  AvailableMemory Available() {
    return ReadMemory(root_).available.value_or(AvailableMemory{});
  }

  std::string root_;
};

TEST_F(MemoryLimitsTest, WithoutCgroupsTheMachineIsTheLimit) {
  EXPECT_EQ(Available().bytes, 1000u << 10);
  EXPECT_EQ(Available().where, "the machine");
  EXPECT_EQ(ReadMemory(root_).private_bytes, 12u << 10);
}

TEST_F(MemoryLimitsTest, TheTightestCgroupAboveTheProcessIsTheLimit) {
  Write("/proc/self/cgroup", "0::/job/step\n");
  const std::string mount = "/sys/fs/cgroup";
  Write(mount + "/job/step/memory.max", "max\n");
  Write(mount + "/job/step/memory.current", "300000\n");
  Write(mount + "/job/memory.max", "500000\n");
  Write(mount + "/job/memory.current", "300000\n");
  Write(mount + "/job/memory.stat", "anon 250000\ninactive_file 40000\n");
  EXPECT_EQ(Available().bytes, 240'000u);
  EXPECT_EQ(Available().where, "cgroup /job");
}

TEST_F(MemoryLimitsTest, ACgroupOverItsLimitHasNothingLeft) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "1000\n");
  Write("/sys/fs/cgroup/memory.current", "4000\n");
  EXPECT_EQ(Available().bytes, 0u);
}

TEST_F(MemoryLimitsTest, AContainersCgroupIsFoundUnderTheHostsName) {
  Write("/proc/self/cgroup", "5:cpu:/docker/1\n4:memory:/docker/1\n");
  const std::string mount = "/sys/fs/cgroup/memory";
  Write(mount + "/memory.limit_in_bytes", "800000\n");
  Write(mount + "/memory.usage_in_bytes", "500000\n");
  Write(mount + "/memory.stat", "total_inactive_file 100000\n");
  EXPECT_EQ(Available().bytes, 400'000u);
  EXPECT_EQ(Available().where, "cgroup /");
}

TEST_F(MemoryLimitsTest, ASystemThatTellsNothingHasNoLimit) {
  EXPECT_FALSE(ReadMemory(root_ + "/none").available.has_value());
}

}  // namespace
}  // namespace pactrain::agent
