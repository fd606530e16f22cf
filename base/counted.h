// "1 step", "2 steps": what texts for people count.
#ifndef PACTRAIN_BASE_COUNTED_H_
#define PACTRAIN_BASE_COUNTED_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace pactrain::base {

inline std::string Counted(uint64_t number, absl::string_view thing) {
  return absl::StrCat(number, " ", thing, number == 1 ? "" : "s");
}

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_COUNTED_H_
