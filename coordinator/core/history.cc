#include "coordinator/core/history.h"

namespace pactrain::coordinator {

using protocol::HistoryMark;

void History::Wrote() {
  if (writers_.empty() || writers_.back().id != self_) {
    writers_.push_back({self_, 0});
  }
  ++writers_.back().batches;
}

HistoryMark History::mark() const {
  HistoryMark mark;
  if (writers_.empty()) return mark;
  mark.writer = writers_.back().id;
  mark.batches = writers_.back().batches;
  if (writers_.size() > 1) {
    const Writer& before = writers_[writers_.size() - 2];
    mark.before = before.id;
    mark.batches_before = before.batches;
  }
  for (const Writer& writer : writers_) mark.total += writer.batches;
  return mark;
}

uint64_t History::BatchesOf(const protocol::Digest& writer) const {
  for (const Writer& known : writers_) {
    if (known.id == writer) return known.batches;
  }
  return 0;
}

bool History::IsBeforeRestoring(const HistoryMark& mark) const {
  if (restored_.empty()) return false;
  bool after = false;
  for (const Writer& writer : writers_) {
    after |= writer.id == restored_;
    if (after && (writer.id == mark.writer || writer.id == mark.before)) {
      return false;
    }
  }
  return after;
}

History::Place History::Find(const HistoryMark& mark) const {
  if (mark.empty()) return Place::kHeld;
  if (const uint64_t batches = BatchesOf(mark.writer);
      batches > 0 && mark.batches <= batches) {
    return Place::kHeld;
  } else if (IsBeforeRestoring(mark)) {
    return Place::kGone;
  } else if (batches > 0) {
    return Place::kLost;
  }
  const HistoryMark own = this->mark();
  const uint64_t before = BatchesOf(mark.before);
  // Nothing is in common that can be seen: the longer one is the newer.
  if (before == 0) return mark.total > own.total ? Place::kLost : Place::kOther;
  // Its writer began where `before` ended. If we have not come farther than
  // that, or lack a part of it, ours is the older.
  const bool farther =
      own.writer != mark.before || before > mark.batches_before;
  return farther && before >= mark.batches_before ? Place::kOther
                                                  : Place::kLost;
}

}  // namespace pactrain::coordinator
