// With which steps masks and a pin come in force, so that equal runs are equal.
//
// Steps are those of gradients, counted from 1. What all ranks declare alike as
// they attach is in force from the first one on; other masks come in force with
// certain steps only, for which ranks wait a little.
#ifndef PACTRAIN_TRAINER_CPP_ONSET_H_
#define PACTRAIN_TRAINER_CPP_ONSET_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/types.h"

namespace pactrain {

// Other masks come in force with a multiple of this step: as in the Python
// client.
inline constexpr uint32_t kActivateEvery = 4;

struct Onset {
  uint32_t activate_every = 0;  // 0: with any step.
  uint32_t pin_from = 0;        // 0: nothing is pinned.
  Mode pin_mode = Mode::kFull;
  Codec pin_codec = Codec::kFp32;

  // For the comparison of all ranks' settings.
  uint32_t pin() const {
    if (pin_from == 0) return 0;
    return static_cast<uint32_t>(pin_mode) * 16 +
           static_cast<uint32_t>(pin_codec);
  }
};

namespace internal {

inline constexpr uint32_t kMaxOnset = 1'000'000'000;

inline void CheckOnsetStep(const std::string& field, uint32_t step) {
  if (step <= kMaxOnset) return;
  throw InvalidArgument(field + " is " + std::to_string(step) +
                        "; allowed are 1 to " + std::to_string(kMaxOnset) +
                        ".\nGive the number of a step; the first one is 1.");
}

// InvalidArgument: not "FULL", "COMPACTED bf16", "TERNARY 7" or the like.
inline std::pair<Mode, Codec> PinFrom(const std::string& text) {
  for (const Mode mode : {Mode::kFull, Mode::kCompacted, Mode::kTernary}) {
    for (int code = PT_CODEC_FP32; code <= PT_CODEC_LEVELS31; ++code) {
      const auto codec = static_cast<Codec>(code);
      const bool levels = codec >= Codec::kLevels3;
      const std::string name = ModeText(mode, codec);
      if (levels == (mode == Mode::kTernary) &&
          (text == name || text + " fp32" == name ||
           text + " levels" == name)) {
        return {mode, codec};
      }
    }
  }
  throw InvalidArgument(
      "pin is '" + text +
      "'; allowed are 'FULL' and 'COMPACTED', alone or with ' bf16', and "
      "'TERNARY 3', 5, 7, 15 or 31.\nGive one of them, as in "
      ".pin = \"TERNARY 7\".");
}

}  // namespace internal

// Of AttachConfig's fields; 0 and "" say nothing.
// InvalidArgument: one is out of range, or two do not go together.
inline Onset OnsetFrom(uint32_t activate_at, const std::string& pin,
                       uint32_t pin_from) {
  internal::CheckOnsetStep("activate_at", activate_at);
  internal::CheckOnsetStep("pin_from", pin_from);
  Onset onset = {.activate_every =
                     activate_at == 0 ? kActivateEvery : activate_at};
  if (pin.empty()) {
    if (pin_from == 0) return onset;
    throw InvalidArgument("pin_from is " + std::to_string(pin_from) +
                          ", and pin says nothing; allowed is both or neither."
                          "\nGive pin, too, as in .pin = \"TERNARY 7\".");
  }
  onset.pin_from = std::max(pin_from, 1u);
  if (onset.pin_from < activate_at) {
    throw InvalidArgument(
        "pin_from is " + std::to_string(onset.pin_from) +
        ", before activate_at, " + std::to_string(activate_at) +
        "; allowed are " + std::to_string(activate_at) +
        " and more.\nPin what travels when the masks are in force.");
  }
  std::tie(onset.pin_mode, onset.pin_codec) = internal::PinFrom(pin);
  return onset;
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_ONSET_H_
