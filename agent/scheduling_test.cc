#include "agent/scheduling.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <thread>

#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

// The kernel's sched_attr, whose header does not go with libc's sched.h.
struct Attributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;
};

Attributes Read() {
  Attributes attributes = {};
  EXPECT_EQ(syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0),
            0);
  return attributes;
}

TEST(ShortTurns, AreNeverLongerAndLeaveTheShareAsItWas) {
  const Attributes before = Read();
  AskForShortTurns();
  const Attributes after = Read();
  EXPECT_LE(after.runtime, before.runtime);
  EXPECT_EQ(after.policy, before.policy);
  EXPECT_EQ(after.nice, before.nice);
  EXPECT_EQ(after.flags, before.flags);
}

// In a thread of its own, which starts from nice 5.
template <typename Test>
void InAThread(Test test) {
  std::thread([&] {
    ASSERT_EQ(setpriority(PRIO_PROCESS, 0, 5), 0);
    test();
  }).join();
}

TEST(LowerNice, TakesSoMuchOffIfAllowed) {
  InAThread([] {
    EXPECT_TRUE(LowerNice(0));
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), 5);
    const bool allowed = LowerNice(7);
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), allowed ? -2 : 5);
    const bool all = LowerNice(20);  // RLIMIT_NICE may end between the two.
    EXPECT_TRUE(allowed || !all);
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), all ? -20 : allowed ? -2 : 5);
    EXPECT_EQ(LowerNice(20), all);
  });
}

TEST(LowerNice, LeavesItWhereTheSystemDoesNotAllowThat) {
  const rlimit nothing = {};
  ASSERT_EQ(setrlimit(RLIMIT_NICE, &nothing), 0);
  InAThread([] {
    // Of this thread alone, unlike libc's function.
    if (geteuid() == 0) {
      ASSERT_EQ(syscall(SYS_setresuid, 65534, 65534, 65534), 0);
    }
    EXPECT_TRUE(LowerNice(0));
    EXPECT_FALSE(LowerNice(1));
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), 5);
  });
}

}  // namespace
}  // namespace pactrain::agent
