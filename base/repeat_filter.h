// Keeps a log short while somebody tries the same thing again and again.
//
// Each text is news once in an interval, and no more than kMaxTexts texts are:
// who makes up new ones cannot fill a disk either. Sources that have a name
// have kMaxTextsOfOne of their own, so that none drowns another; beyond
// kMaxSources they share one source's.
//
// Pure: no clock. Thread-compatible.
#ifndef PACTRAIN_BASE_REPEAT_FILTER_H_
#define PACTRAIN_BASE_REPEAT_FILTER_H_

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace pactrain::base {

class RepeatFilter {
 public:
  static constexpr size_t kMaxTexts = 64;
  static constexpr size_t kMaxTextsOfOne = 16;
  static constexpr size_t kMaxSources = 32;

  enum class Word {
    kNews,
    kKnown,
    kFirstTooMany,  // The first in an interval that is neither.
    kTooMany,
  };

  explicit RepeatFilter(absl::Duration interval = absl::Minutes(1))
      : interval_(interval) {}

  Word Hear(const std::string& text, absl::Duration now,
            const std::string& source = "");
  bool IsNews(const std::string& text, absl::Duration now,
              const std::string& source = "") {
    return Hear(text, now, source) == Word::kNews;
  }

 private:
  struct Source {
    std::map<std::string, absl::Duration> told;  // When.
    std::optional<absl::Duration> too_many;      // When that was first said.
  };
  void Forget(absl::Duration now);

  const absl::Duration interval_;
  std::map<std::string, Source> sources_;
  Source others_;  // With a name, beyond kMaxSources.
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_REPEAT_FILTER_H_
