#include "trainer/core/mask_tracker.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernels/nonzero.h"

namespace pactrain::trainer {
namespace {

constexpr uint64_t kWord = 64;  // Elements.
constexpr std::string_view kEnd = " elements moved";

uint64_t Words(uint64_t elements) { return (elements + kWord - 1) / kWord; }

// "1,204"
std::string WithCommas(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

// Words [first, end) of all parameters in a row.
std::vector<pt_range> Cut(const std::vector<MaskTracker::Parameter>& parameters,
                          uint64_t first, uint64_t end) {
  std::vector<pt_range> ranges;
  uint64_t start = 0;  // The parameter's first word.
  for (uint32_t i = 0; i < parameters.size(); ++i) {
    const uint64_t words = Words(parameters[i].elements);
    const uint64_t from = std::max(first, start);
    const uint64_t to = std::min(end, start + words);
    if (from < to) {
      const uint64_t element = (from - start) * kWord;
      const uint64_t last =
          std::min((to - start) * kWord, parameters[i].elements);
      ranges.push_back(
          {.parameter = i, .first = element, .elements = last - element});
    }
    start += words;
  }
  return ranges;
}

}  // namespace

MaskTracker::MaskTracker(std::vector<Parameter> parameters,
                         uint32_t settle_steps)
    : settle_(settle_steps) {
  uint64_t words = 0;
  for (const Parameter& parameter : parameters) {
    words += Words(parameter.elements);
  }
  all_ = Cut(parameters, 0, words);
  const uint64_t period = std::min(settle_steps, kMaxPeriod);
  for (uint64_t i = 0; i < period; ++i) {
    parts_.push_back(
        Cut(parameters, words * i / period, words * (i + 1) / period));
  }
  for (Parameter& parameter : parameters) {
    tracked_.push_back(
        {.name = std::move(parameter.name),
         .words = std::vector<uint64_t>(Words(parameter.elements)),
         .total = {}});
  }
}

const std::vector<pt_range>& MaskTracker::due() const {
  return all_due_ ? all_ : parts_[phase_ % parts_.size()];
}

uint64_t MaskTracker::Look(size_t index, const float* values) {
  const pt_range& range = due()[index];
  Tracked& tracked = tracked_[range.parameter];
  const kernels::ZeroChanges seen = kernels::UpdateNonZero(
      values, range.elements, tracked.words.data() + range.first / kWord);
  const uint64_t count = seen.gone + seen.back;
  if (first_ || count == 0) return 0;
  if (settled() && !changed_) {
    for (Tracked& other : tracked_) other.recent = 0;
  }
  changed_ = true;
  tracked.recent += count;
  tracked.total.gone += seen.gone;
  tracked.total.back += seen.back;
  return count;
}

void MaskTracker::EndStep() {
  if (!first_) ++steps_;
  if (changed_) last_change_ = steps_;
  unchanged_ = changed_ || all_due_ ? 0 : unchanged_ + 1;
  phase_ = all_due_ ? 0 : phase_ + 1;
  first_ = changed_ = all_due_ = false;
}

void MaskTracker::Restart() {
  all_due_ = true;
  unchanged_ = 0;
}

std::string MaskTracker::Moved() const {
  std::vector<const Tracked*> moved;
  for (const Tracked& tracked : tracked_) {
    if (tracked.recent > 0) moved.push_back(&tracked);
  }
  std::stable_sort(
      moved.begin(), moved.end(),
      [](const Tracked* a, const Tracked* b) { return a->recent > b->recent; });
  std::string text;
  for (const Tracked* tracked : moved) {
    std::string more = text.empty() ? "" : ", ";
    more += tracked->name + " " + WithCommas(tracked->recent);
    if (text.size() + more.size() + kEnd.size() > kMaxText) break;
    text += more;
  }
  if (moved.empty()) return "";
  if (text.empty()) {  // A name that is too long: its end says most.
    const std::string count = " " + WithCommas(moved[0]->recent);
    const size_t room = kMaxText - kEnd.size() - count.size();
    text = moved[0]->name.substr(moved[0]->name.size() - room) + count;
  }
  return text + std::string(kEnd);
}

}  // namespace pactrain::trainer
