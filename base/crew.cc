#include "base/crew.h"

#include <sched.h>

#include <algorithm>
#include <atomic>

#include "base/check.h"

namespace pactrain::base {
namespace {

// Every wait has a bound; nothing depends on this one.
constexpr absl::Duration kLookAgain = absl::Seconds(10);

}  // namespace

struct Crew::Loop {
  const size_t items;
  const size_t grain;
  const Part part;
  std::atomic<size_t> next = 0;  // The first item that nobody has taken.

  bool taken() const { return next.load(std::memory_order_relaxed) >= items; }
  void Run() {
    // Beyond `items` it grows by one grain for each thread, and no further.
    for (;;) {
      const size_t first = next.fetch_add(grain, std::memory_order_relaxed);
      if (first >= items) return;
      part(first, std::min(grain, items - first));
    }
  }
};

int ThreadsBesideOthers(int processors) {
  return std::clamp(processors / 8, 1, 4);
}

int Processors() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    return CPU_COUNT(&allowed);
  }
  // More of them than a cpu_set_t holds.
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

Crew::Crew(int threads) {
  PT_CHECK(threads >= 1);
  for (int i = 1; i < threads; ++i) {
    helpers_.emplace_back([this] { Help(); });
  }
}

Crew::~Crew() {
  {
    MutexLock lock(&mu_);
    ended_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& helper : helpers_) helper.join();
}

void Crew::Share(size_t items, size_t grain, Part part) {
  PT_CHECK(grain >= 1);
  Loop loop{items, grain, part};
  if (helpers_.empty() || items <= grain) return loop.Run();
  {
    MutexLock lock(&mu_);
    PT_CHECK(loop_ == nullptr);
    loop_ = &loop;
  }
  changed_.NotifyAll();
  loop.Run();
  MutexLock lock(&mu_);
  loop_ = nullptr;
  while (inside_ > 0) changed_.WaitFor(&mu_, kLookAgain);
}

void Crew::Help() {
  while (Loop* const loop = Join()) {
    loop->Run();
    Leave();
  }
}

Crew::Loop* Crew::Join() {
  MutexLock lock(&mu_);
  while (!ended_) {
    if (loop_ != nullptr && !loop_->taken()) {
      ++inside_;
      return loop_;
    }
    changed_.WaitFor(&mu_, kLookAgain);
  }
  return nullptr;
}

void Crew::Leave() {
  MutexLock lock(&mu_);
  if (--inside_ == 0) changed_.NotifyAll();
}

}  // namespace pactrain::base
