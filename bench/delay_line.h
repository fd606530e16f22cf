// What is under way on a link in one direction: comes out in order, never
// before its time.
//
// Pure: `now` is given, monotonic. Thread-compatible.
#ifndef PACTRAIN_BENCH_DELAY_LINE_H_
#define PACTRAIN_BENCH_DELAY_LINE_H_

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"

namespace pactrain::bench {

class DelayLine {
 public:
  // `most_bytes`: of all pieces under way; beyond them it is full().
  explicit DelayLine(size_t most_bytes) : most_bytes_(most_bytes) {}

  // Nothing is to be put in until something was taken.
  bool full() const { return bytes_ >= most_bytes_; }

  // A shorter delay than that of the piece before overtakes nothing.
  void Put(absl::Duration now, absl::Duration delay, std::string piece) {
    absl::Duration due = now + delay;
    if (!waiting_.empty()) due = std::max(due, waiting_.back().due);
    bytes_ += piece.size();
    waiting_.push_back({due, std::move(piece)});
  }

  // The next piece if its time has come.
  std::optional<std::string> Take(absl::Duration now) {
    if (waiting_.empty() || waiting_.front().due > now) return std::nullopt;
    std::string piece = std::move(waiting_.front().piece);
    waiting_.pop_front();
    bytes_ -= piece.size();
    return piece;
  }

  // When the next piece comes out; infinite: none is under way.
  absl::Duration due() const {
    return waiting_.empty() ? absl::InfiniteDuration() : waiting_.front().due;
  }

 private:
  struct Waiting {
    absl::Duration due;
    std::string piece;
  };
  const size_t most_bytes_;
  size_t bytes_ = 0;
  std::deque<Waiting> waiting_;
};

}  // namespace pactrain::bench

#endif  // PACTRAIN_BENCH_DELAY_LINE_H_
