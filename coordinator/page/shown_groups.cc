#include "coordinator/page/shown_groups.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace pactrain::coordinator {

std::set<std::string> CutToShown(size_t most,
                                 std::vector<GroupSnapshot>& groups) {
  std::set<std::string> hidden;
  if (groups.size() <= most) return hidden;
  std::vector<size_t> order(groups.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t i) {
    const GroupSnapshot& group = groups[i];
    const bool ended =
        group.phase == GroupPhase::kEnded || group.phase == GroupPhase::kFailed;
    return std::tuple(group.phase != GroupPhase::kRunning, ended,
                      ended ? group.ended_seconds.value_or(0) : 0,
                      group.counted_since, i);
  };
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return key(a) < key(b); });
  for (size_t i = most; i < order.size(); ++i) {
    hidden.insert(groups[order[i]].group.ToString());
  }
  std::erase_if(groups, [&](const GroupSnapshot& group) {
    return hidden.contains(group.group.ToString());
  });
  return hidden;
}

}  // namespace pactrain::coordinator
