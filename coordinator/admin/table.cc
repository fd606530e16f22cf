#include "coordinator/admin/table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pactrain::coordinator {

std::string Table(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      absl::StrAppendFormat(&text, "%-*s  ", static_cast<int>(widths[i]),
                            row[i]);
    }
    absl::StrAppend(&text, row.back(), "\n");
  }
  return text;
}

std::string RateText(double rate) {
  const double mbit = rate * 8e-6;
  return absl::StrFormat("%.*f Mbit/s", mbit < 10 ? 1 : 0, mbit);
}

}  // namespace pactrain::coordinator
