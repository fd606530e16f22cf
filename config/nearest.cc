#include "config/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

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

// Whether a part of `word`, between its separators, begins with `typed`.
bool HasPart(absl::string_view word, absl::string_view typed) {
  for (size_t at = 0; at + typed.size() <= word.size(); ++at) {
    const bool begins = at == 0 || word[at - 1] == '-' || word[at - 1] == '_';
    if (begins && absl::StartsWithIgnoreCase(word.substr(at), typed)) {
      return true;
    }
  }
  return false;
}

// Fewer characters are in too many words.
constexpr size_t kLeastPart = 3;

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
  if (!nearest.empty() || typed.size() < kLeastPart) return nearest;
  for (const std::string& word : words) {
    const bool shorter = nearest.empty() || word.size() < nearest.size();
    if (shorter && HasPart(word, typed)) nearest = word;
  }
  return nearest;
}

}  // namespace pactrain::config
