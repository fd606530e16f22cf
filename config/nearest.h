// What somebody who mistyped a word may have meant.
#ifndef PACTRAIN_CONFIG_NEAREST_H_
#define PACTRAIN_CONFIG_NEAREST_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace pactrain::config {

// The one of `words` that becomes `typed` by the fewest changes of a character
// other than of its case, if these are at most a third of it; else the shortest
// that has a part which begins so, as advertise-address for "addr"; else empty.
std::string Nearest(absl::string_view typed,
                    const std::vector<std::string>& words);

}  // namespace pactrain::config

#endif  // PACTRAIN_CONFIG_NEAREST_H_
