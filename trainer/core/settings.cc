#include "trainer/core/settings.h"

#include <array>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pactrain::trainer {
namespace {

using Lines = std::vector<std::pair<std::string, std::string>>;

// Settings and what a script calls them.
struct Words {
  std::string_view setting;
  std::string_view argument;
  std::string_view todo;  // Empty: give all ranks the same.
};
constexpr std::string_view kOneModel = "Give all ranks one model";
constexpr std::array<Words, 4> kWords = {
    {{"settle_steps", "settle", ""},
     {"track", "masks", "Track masks on all ranks or on none"},
     {"buffer_bytes", "the size of the model's buffers", kOneModel},
     {"parameters_and_buffers",
      "the digest of all parameters' and buffers' names, shapes and types",
      kOneModel}}};

Lines LinesOf(const std::string& settings) {
  std::istringstream text(settings);
  Lines lines;
  std::string name, value;
  while (text >> name >> value) lines.emplace_back(name, value);
  return lines;
}

std::optional<std::string> Find(const Lines& lines, const std::string& name) {
  for (const auto& [found, value] : lines) {
    if (found == name) return value;
  }
  return std::nullopt;
}

template <size_t kCount>
std::string OneOf(const std::array<const char*, kCount>& names,
                  const std::string& value) {
  const size_t index = std::strtoul(value.c_str(), nullptr, 10);
  return index < kCount ? names[index] : value;
}

// Mode times 16 plus codec, as in "TERNARY 7 levels".
std::string PinWords(const std::string& value) {
  const size_t pin = std::strtoul(value.c_str(), nullptr, 10);
  constexpr std::array<const char*, 4> kModes = {"", "FULL", "COMPACTED",
                                                 "TERNARY"};
  constexpr std::array<const char*, 8> kCodecs = {
      "",         "fp32",     "bf16",      "3 levels",
      "5 levels", "7 levels", "15 levels", "31 levels"};
  const size_t mode = pin / 16, codec = pin % 16;
  if (mode == 0 || mode >= kModes.size() || codec >= kCodecs.size()) {
    return value;
  }
  return std::string(kModes[mode]) + " " + kCodecs[codec];
}

std::string ValueWords(const std::string& name, const std::string& value) {
  if (name == "gse" || name == "sync_masks") {
    return OneOf<2>({"False", "True"}, value);
  }
  if (name == "on_shrink") {
    return OneOf<3>({"abort", "pause", "continue"}, value);
  }
  if (name == "track") return OneOf<2>({"declared ones", "'track'"}, value);
  if (name == "buffer_bytes") return value + " bytes";
  if (name == "buffer_sync_interval" && value == "0") {
    return "0 (never, as with broadcast_buffers=False)";
  }
  const bool may_be_left_out =
      name == "activate_at" || name == "pin" || name == "pin_from";
  if (may_be_left_out && value == "0") return "none";
  return name == "pin" ? PinWords(value) : value;
}

std::string RankText(uint32_t rank) { return "rank " + std::to_string(rank); }

std::string Text(const std::string& name, const std::string& value,
                 uint32_t rank, const std::string& other, uint32_t other_rank) {
  std::string argument = name, todo;
  for (const Words& words : kWords) {
    if (words.setting != name) continue;
    argument = words.argument;
    todo = words.todo;
  }
  if (todo.empty()) todo = "Give all ranks the same " + argument;
  return argument + " differs: " + RankText(rank) + " has " +
         ValueWords(name, value) + ", " + RankText(other_rank) + " has " +
         ValueWords(name, other) + ".\n" + todo + ".";
}

}  // namespace

std::string SettingsDifference(const std::string& settings, uint32_t rank,
                               const std::string& other, uint32_t other_rank) {
  const Lines ours = LinesOf(settings), theirs = LinesOf(other);
  // It decides which others there are.
  const auto track = Find(ours, "track"), other_track = Find(theirs, "track");
  if (track && other_track && *track != *other_track) {
    return Text("track", *track, rank, *other_track, other_rank);
  }
  for (size_t i = 0; i < ours.size() || i < theirs.size(); ++i) {
    if (i >= ours.size() || i >= theirs.size() ||
        ours[i].first != theirs[i].first) {
      return "The settings are those of another release at " + RankText(rank) +
             ".\nUse one release of pactrain on all ranks.";
    }
    if (ours[i].second == theirs[i].second) continue;
    return Text(ours[i].first, ours[i].second, rank, theirs[i].second,
                other_rank);
  }
  return "";
}

}  // namespace pactrain::trainer
