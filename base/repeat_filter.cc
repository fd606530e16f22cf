#include "base/repeat_filter.h"

#include <iterator>

namespace pactrain::base {

bool RepeatFilter::IsNews(const std::string& text, absl::Duration now) {
  for (auto it = told_.begin(); it != told_.end();) {
    it = now - it->second >= interval_ ? told_.erase(it) : std::next(it);
  }
  return told_.size() < kMaxTexts && told_.emplace(text, now).second;
}

}  // namespace pactrain::base
