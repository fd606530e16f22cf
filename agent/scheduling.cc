#include "agent/scheduling.h"

#include <linux/sched/types.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace pactrain::agent {
namespace {

constexpr __u64 kTurnNs = 100'000;  // The least that Linux gives.
constexpr int kLeastNice = -20;

}  // namespace

void AskForShortTurns() {
  // Debian 12's libc has neither call. What is not changed has to be said
  // again.
  sched_attr attributes = {};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) {
    return;
  }
  attributes.sched_runtime = kTurnNs;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

bool LowerNice(int by) {
  // Of the calling thread: Linux gives each one its own.
  const int nice = getpriority(PRIO_PROCESS, 0);
  const int wanted = std::max(nice - by, kLeastNice);
  return wanted >= nice || setpriority(PRIO_PROCESS, 0, wanted) == 0;
}

}  // namespace pactrain::agent
