// Keeps the page's model up to date, on a thread of its own, and hands what it
// says to viewers.
//
// Thread-safe. Takes nobody's lock but its own, and none while it asks for a
// snapshot: who reads the page holds nothing up.
#ifndef PACTRAIN_COORDINATOR_PAGE_PAGE_BOARD_H_
#define PACTRAIN_COORDINATOR_PAGE_PAGE_BOARD_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/certificate_life.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "coordinator/core/snapshot.h"
#include "coordinator/page/page_model.h"

namespace pactrain::coordinator {

// What a viewer looks at.
struct View {
  enum class Kind { kOverview, kJob, kLinks };
  Kind kind = Kind::kOverview;
  std::string job;  // Of kJob.
  auto operator<=>(const View&) const = default;
};

class PageBoard {
 public:
  static constexpr absl::Duration kTick = absl::Seconds(2);
  static constexpr absl::Duration kPatience = absl::Seconds(10);

  // What is shown, and when that is; called from the board's thread.
  struct Source {
    std::function<StateSnapshot()> snapshot;
    std::function<std::optional<base::CertificateLives>()> certificates;
    std::function<absl::Duration()> clock = base::MonotonicNow;
  };
  PageBoard(Source source, PageModel::Settings settings);
  ~PageBoard();  // Stop().

  void Start();    // Observes every kTick from now on.
  void Stop();     // Wakes all viewers; Next() is empty from now on.
  void Observe();  // Now; what the thread does, and tests.

  struct Message {
    bool stopped = false;  // There is no next one.
    uint64_t tick = 0;
    std::shared_ptr<const std::string> json;  // Null: there is nothing new.
  };
  // What is to be shown after tick `seen`; waits for it, kPatience at most, and
  // no longer than `is_over`: stopped then.
  Message Next(const View& view, uint64_t seen,
               const std::atomic<bool>& is_over);
  void Wake();  // For is_over.

 private:
  void Loop();

  const Source source_;
  std::thread thread_;
  base::Mutex mu_;
  base::CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  PageModel model_ ABSL_GUARDED_BY(mu_);
  // Of this tick, made when the first viewer asks; as many as there are
  // viewers at most, since each waits for the next tick after it.
  std::map<std::pair<View, uint64_t>, std::shared_ptr<const std::string>> said_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_PAGE_PAGE_BOARD_H_
