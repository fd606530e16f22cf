#include "trainer/core/transfer_progress.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>

namespace pactrain::trainer {
namespace {

constexpr size_t kMostNamed = 8;

// "ranks 2, 3 take"
std::string TakersText(const std::vector<uint32_t>& takers) {
  if (takers.size() == 1) return "rank " + std::to_string(takers[0]) + " takes";
  std::string text = "ranks ";
  for (size_t i = 0; i < std::min(takers.size(), kMostNamed); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(takers[i]);
  }
  if (takers.size() > kMostNamed) {
    text += " and " + std::to_string(takers.size() - kMostNamed) + " more";
  }
  return text + " take";
}

std::string Megabytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", static_cast<double>(bytes) / 1e6);
  return text;
}

}  // namespace

std::string LineAt(const TransferProgress& progress,
                   std::chrono::nanoseconds now) {
  if (now - progress.told < TransferProgress::kQuiet) return "";
  return TakersText(progress.takers) + " " + progress.what + " of rank " +
         std::to_string(progress.giver) + ": " + Megabytes(progress.bytes) +
         " of " + Megabytes(progress.all) + " MB";
}

}  // namespace pactrain::trainer
