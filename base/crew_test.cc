#include "base/crew.h"

#include <sched.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

// Each item is counted once, in parts of at most `grain`.
void ExpectAllOnce(Crew& crew, size_t items, size_t grain) {
  std::vector<std::atomic<int>> seen(items);
  crew.Share(items, grain, [&](size_t first, size_t count) {
    EXPECT_LE(count, grain);
    EXPECT_EQ(first % grain, 0u);
    for (size_t i = first; i < first + count; ++i) ++seen.at(i);
  });
  for (size_t i = 0; i < items; ++i) EXPECT_EQ(seen[i], 1) << i;
}

TEST(ThreadsBesideOthersTest, IsAnEighthWithinBounds) {
  EXPECT_EQ(ThreadsBesideOthers(1), 1);
  EXPECT_EQ(ThreadsBesideOthers(15), 1);
  EXPECT_EQ(ThreadsBesideOthers(16), 2);
  EXPECT_EQ(ThreadsBesideOthers(256), 4);
}

TEST(ProcessorsTest, AreThoseOfTheAffinity) {
  EXPECT_GE(Processors(), 1);
  int one = -1;
  std::thread([&] {
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(sched_getcpu(), &first);
    EXPECT_EQ(sched_setaffinity(0, sizeof first, &first), 0);
    one = Processors();
  }).join();
  EXPECT_EQ(one, 1);
}

TEST(Crew, EveryItemIsDoneOnceWhateverTheThreads) {
  for (int threads : {1, 2, 5}) {
    Crew crew(threads);
    EXPECT_EQ(crew.threads(), threads);
    for (size_t items : {0u, 1u, 7u, 8u, 9u, 1000u}) {
      for (size_t grain : {1u, 8u, 2000u}) ExpectAllOnce(crew, items, grain);
    }
  }
}

TEST(Crew, WhatIsWrittenIsThereWhenTheLoopEnds) {
  Crew crew(3);
  for (int round = 0; round < 2000; ++round) {
    int values[8] = {};  // Not atomic.
    crew.Share(8, 1, [&](size_t first, size_t) { values[first] = round; });
    for (int value : values) ASSERT_EQ(value, round);
  }
}

TEST(Crew, AllItsThreadsTakePart) {
  constexpr size_t kThreads = 3;
  Crew crew(kThreads);
  Mutex mu;
  CondVar come;
  std::set<std::thread::id> here;
  const absl::Duration end = MonotonicNow() + absl::Minutes(2);
  // Each part waits for the others: one thread alone would not get beyond it.
  crew.Share(kThreads, 1, [&](size_t, size_t) {
    MutexLock lock(&mu);
    here.insert(std::this_thread::get_id());
    come.NotifyAll();
    while (here.size() < kThreads && MonotonicNow() < end) {
      come.WaitFor(&mu, absl::Seconds(1));
    }
  });
  EXPECT_EQ(here.size(), kThreads);
  EXPECT_EQ(here.count(std::this_thread::get_id()), 1u);
}

TEST(Crew, ShortLoopsStayWithTheOneWhoCalls) {
  Crew crew(3);
  const std::thread::id caller = std::this_thread::get_id();
  for (int round = 0; round < 100; ++round) {
    crew.Share(8, 8, [&](size_t first, size_t count) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      EXPECT_EQ(first, 0u);
      EXPECT_EQ(count, 8u);
    });
  }
}

}  // namespace
}  // namespace pactrain::base
