// Keeps a log short while somebody tries the same thing again and again.
//
// Each text is news once in an interval, and no more than kMaxTexts texts are:
// who makes up new ones cannot fill a disk either.
//
// Pure: no clock. Thread-compatible.
#ifndef PACTRAIN_BASE_REPEAT_FILTER_H_
#define PACTRAIN_BASE_REPEAT_FILTER_H_

#include <cstddef>
#include <map>
#include <string>

#include "absl/time/time.h"

namespace pactrain::base {

class RepeatFilter {
 public:
  static constexpr size_t kMaxTexts = 64;

  explicit RepeatFilter(absl::Duration interval = absl::Minutes(1))
      : interval_(interval) {}

  bool IsNews(const std::string& text, absl::Duration now);

 private:
  const absl::Duration interval_;
  std::map<std::string, absl::Duration> told_;  // When; younger than interval_.
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_REPEAT_FILTER_H_
