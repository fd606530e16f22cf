#include "coordinator/page/page_board.h"

#include "absl/time/clock.h"

namespace pactrain::coordinator {

PageBoard::PageBoard(Source source, PageModel::Settings settings)
    : source_(std::move(source)), model_(settings) {}

PageBoard::~PageBoard() { Stop(); }

void PageBoard::Start() {
  Observe();
  thread_ = std::thread([this] { Loop(); });
}

void PageBoard::Stop() {
  {
    base::MutexLock lock(&mu_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void PageBoard::Loop() {
  while (true) {
    const absl::Duration until = base::MonotonicNow() + kTick;
    {
      base::MutexLock lock(&mu_);
      for (auto left = kTick; !stopping_ && left > absl::ZeroDuration();
           left = until - base::MonotonicNow()) {
        changed_.WaitFor(&mu_, left);
      }
      if (stopping_) return;
    }
    Observe();
  }
}

void PageBoard::Observe() {
  StateSnapshot snapshot = source_.snapshot();
  const auto certificates = source_.certificates();
  {
    base::MutexLock lock(&mu_);
    model_.Observe(std::move(snapshot), certificates, source_.clock(),
                   absl::Now());
    said_.clear();
  }
  changed_.NotifyAll();
}

void PageBoard::Wake() {
  // Who looks at is_over just now waits by then.
  { base::MutexLock lock(&mu_); }
  changed_.NotifyAll();
}

PageBoard::Message PageBoard::Next(const View& view, uint64_t seen,
                                   const std::atomic<bool>& is_over) {
  base::MutexLock lock(&mu_);
  const absl::Duration until = base::MonotonicNow() + kPatience;
  for (auto left = kPatience; !stopping_ && !is_over && model_.tick() == seen;
       left = until - base::MonotonicNow()) {
    if (left <= absl::ZeroDuration()) return {false, seen, nullptr};
    changed_.WaitFor(&mu_, left);
  }
  if (stopping_ || is_over) return {true, seen, nullptr};
  auto& json = said_[{view, seen}];
  if (json == nullptr) {
    json = std::make_shared<const std::string>(
        view.kind == View::Kind::kJob     ? model_.Job(view.job, seen)
        : view.kind == View::Kind::kLinks ? model_.Links(seen)
                                          : model_.Overview(seen));
  }
  return {false, model_.tick(), json};
}

}  // namespace pactrain::coordinator
