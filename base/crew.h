// Threads that share out one loop: for work over memory that one core alone
// reads slower than it comes.
//
// The one who calls does parts of the loop, too, and takes the next part when
// it is done with one. So a helper that begins late costs nothing. One that
// loses its processor in the middle of a part keeps the caller waiting: for
// machines with processors to spare.
//
// Thread-compatible: one loop at a time.
#ifndef PACTRAIN_BASE_CREW_H_
#define PACTRAIN_BASE_CREW_H_

#include <cstddef>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/mutex.h"

namespace pactrain::base {

// How many threads a crew may have beside other work on so many processors: an
// eighth, but 1 to 4. More than that memory does not feed.
int ThreadsBesideOthers(int processors);
// That this process may use by its affinity (not by a quota of its cgroup).
int Processors();

class Crew {
 public:
  // Calls of it are independent: they may run at once and in any order.
  using Part = absl::FunctionRef<void(size_t first, size_t count)>;

  // `threads` >= 1 for a loop, the caller's included.
  explicit Crew(int threads);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls `part` for all of [0, items), `grain` >= 1 items at a time (the last
  // ones may be fewer), each item once. Returns when all calls have. What they
  // wrote is seen here.
  void Share(size_t items, size_t grain, Part part);

 private:
  struct Loop;

  void Help();
  Loop* Join();  // Null: the crew ends.
  void Leave();

  Mutex mu_;
  CondVar changed_;
  Loop* loop_ ABSL_GUARDED_BY(mu_) = nullptr;
  int inside_ ABSL_GUARDED_BY(mu_) = 0;  // Helpers that have joined it.
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> helpers_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_CREW_H_
