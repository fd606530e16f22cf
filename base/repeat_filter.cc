#include "base/repeat_filter.h"

#include <iterator>

namespace pactrain::base {

void RepeatFilter::Forget(absl::Duration now) {
  const auto is_old = [&](absl::Duration when) {
    return now - when >= interval_;
  };
  const auto forget = [&](Source& source) {
    std::erase_if(source.told,
                  [&](const auto& it) { return is_old(it.second); });
    if (source.too_many && is_old(*source.too_many)) source.too_many.reset();
    return source.told.empty() && !source.too_many;
  };
  for (auto it = sources_.begin(); it != sources_.end();) {
    it = forget(it->second) ? sources_.erase(it) : std::next(it);
  }
  forget(others_);
}

RepeatFilter::Word RepeatFilter::Hear(const std::string& text,
                                      absl::Duration now,
                                      const std::string& name) {
  Forget(now);
  const bool has_place =
      name.empty() || sources_.contains(name) || sources_.size() < kMaxSources;
  Source& source = has_place ? sources_[name] : others_;
  if (source.told.contains(text)) return Word::kKnown;
  if (source.told.size() < (name.empty() ? kMaxTexts : kMaxTextsOfOne)) {
    source.told.emplace(text, now);
    return Word::kNews;
  }
  if (source.too_many) return Word::kTooMany;
  source.too_many = now;
  return Word::kFirstTooMany;
}

}  // namespace pactrain::base
