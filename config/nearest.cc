#include "config/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"

namespace pactrain::config {
namespace {

char Lower(char c) {
  return absl::ascii_tolower(static_cast<unsigned char>(c));
}

// Levenshtein distance: characters added, dropped or replaced; upper and lower
// case are the same.
size_t Changes(absl::string_view from, absl::string_view to) {
  // Of from[0, i) to to[0, j), for the i at hand.
  std::vector<size_t> changes(to.size() + 1);
  std::iota(changes.begin(), changes.end(), size_t{0});
  for (size_t i = 1; i <= from.size(); ++i) {
    size_t diagonal = std::exchange(changes[0], i);
    for (size_t j = 1; j <= to.size(); ++j) {
      const size_t replaced =
          diagonal + (Lower(from[i - 1]) == Lower(to[j - 1]) ? 0 : 1);
      diagonal = changes[j];
      changes[j] = std::min({replaced, changes[j - 1] + 1, changes[j] + 1});
    }
  }
  return changes.back();
}

}  // namespace

std::string Nearest(absl::string_view typed,
                    const std::vector<std::string>& words) {
  std::string nearest;
  size_t fewest = typed.size() / 3 + 1;
  for (const std::string& word : words) {
    // Also the bound of the work, whatever was typed.
    if (typed.size() > 2 * word.size()) continue;
    const size_t changes = Changes(word, typed);
    if (changes < fewest) {
      fewest = changes;
      nearest = word;
    }
  }
  return nearest;
}

}  // namespace pactrain::config
