// What the journal holds of its own past: who wrote to it, and how much.
//
// Every opening of the journal is a writer with a random id. A batch of records
// is a place in the history, named by its writer and its number there. Agents
// remember the newest place that they were told (log before tell: it was
// durable then), so a journal that does not hold it is an older copy, or
// another one. Who restores a backup on purpose becomes a writer by that: what
// others wrote after the backup is gone, and known to be.
//
// Pure. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_HISTORY_H_
#define PACTRAIN_COORDINATOR_CORE_HISTORY_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "protocol/control.h"

namespace pactrain::coordinator {

// One that wrote nothing leaves no trace.
struct Writer {
  protocol::Digest id;
  uint64_t batches = 0;  // Of records, that it wrote.
  bool operator==(const Writer&) const = default;
};

class History {
 public:
  History() = default;
  // `writers`: in order, each with at least one batch. `self`: this opening.
  // `restored`: the writer that stands for the newest restoring of a backup;
  // empty: there was none.
  History(std::vector<Writer> writers, const protocol::Digest& self,
          const protocol::Digest& restored = {})
      : writers_(std::move(writers)), self_(self), restored_(restored) {}

  // This opening wrote a batch.
  void Wrote();
  const std::vector<Writer>& writers() const { return writers_; }
  const protocol::Digest& self() const { return self_; }
  // The newest place, without a proof; empty: nothing was ever written.
  protocol::HistoryMark mark() const;

  enum class Place {
    kHeld,   // The journal holds it.
    kLost,   // It comes after all of the journal, which is an older copy.
    kOther,  // It is of another copy of the journal, which went its own way.
    kGone,   // It was lost when a backup was restored, on purpose.
  };
  Place Find(const protocol::HistoryMark& mark) const;

 private:
  uint64_t BatchesOf(const protocol::Digest& writer) const;  // 0: unknown.
  // Nothing of the place was written by the restored journal.
  bool IsBeforeRestoring(const protocol::HistoryMark& mark) const;

  std::vector<Writer> writers_;
  protocol::Digest self_;
  protocol::Digest restored_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_HISTORY_H_
