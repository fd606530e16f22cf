#include "coordinator/core/rank_list.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace pactrain::coordinator {

std::string RankList(const std::vector<uint32_t>& ranks) {
  constexpr size_t kShown = 8;
  const auto end = ranks.begin() + std::min(ranks.size(), kShown);
  std::string text = absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                                  absl::StrJoin(ranks.begin(), end, ", "));
  if (ranks.size() > kShown) {
    absl::StrAppend(&text, ", ... (", ranks.size(), " in all)");
  }
  return text;
}

}  // namespace pactrain::coordinator
