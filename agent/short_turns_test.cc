#include "agent/short_turns.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

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

}  // namespace
}  // namespace pactrain::agent
