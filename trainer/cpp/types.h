// Plain values of the C++ trainer API; the numbers are those of
// trainer/pactrain.h.
#ifndef PACTRAIN_TRAINER_CPP_TYPES_H_
#define PACTRAIN_TRAINER_CPP_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "trainer/pactrain.h"

namespace pactrain {

// What travels: everything, the kept elements, or those coarsely quantised.
enum class Mode : int32_t {
  kFull = PT_FULL,
  kCompacted = PT_COMPACTED,
  kTernary = PT_TERNARY,
};

// How an element is written between sites. Not all values have a name here: a
// newer library may choose others.
enum class Codec : int32_t {
  kFp32 = PT_CODEC_FP32,
  kBf16 = PT_CODEC_BF16,
  kLevels3 = PT_CODEC_LEVELS3,
  kLevels5 = PT_CODEC_LEVELS5,
  kLevels7 = PT_CODEC_LEVELS7,
  kLevels15 = PT_CODEC_LEVELS15,
  kLevels31 = PT_CODEC_LEVELS31,
};

enum class DType : int { kFloat32 = PT_FLOAT32, kBfloat16 = PT_BFLOAT16 };

// Sum of gradients, or XOR: words of one rank, to which the others add zeros.
enum class Op : int { kSum = PT_SUM, kXor = PT_XOR };

// What a job does when its ranks become fewer: end, wait for as many as before,
// or go on with those that are left.
enum class OnShrink : int32_t {
  kAbort = PT_ABORT,
  kPause = PT_PAUSE,
  kContinue = PT_CONTINUE,
};

// 128 bits; all zero means none.
struct Digest {
  uint64_t hi = 0;
  uint64_t lo = 0;

  friend bool operator==(const Digest&, const Digest&) = default;

  pt_digest ToC() const { return {hi, lo}; }
  static Digest FromC(const pt_digest& digest) {
    return {digest.hi, digest.lo};
  }
  // 16 bytes, most significant first: for digests over digests.
  std::string ToBytes() const {
    std::string bytes;
    for (const uint64_t part : {hi, lo}) {
      for (int shift = 56; shift >= 0; shift -= 8) {
        bytes.push_back(static_cast<char>(part >> shift & 0xff));
      }
    }
    return bytes;
  }
  // 32 hexadecimal digits.
  std::string ToString() const {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    for (const char c : ToBytes()) {
      const auto byte = static_cast<uint8_t>(c);
      text.push_back(kDigits[byte >> 4]);
      text.push_back(kDigits[byte & 15]);
    }
    return text;
  }
};

// XXH3-128.
inline Digest DigestOf(const void* data, size_t bytes) {
  return Digest::FromC(pt_digest_of(data, bytes));
}
inline Digest DigestOf(const std::string& text) {
  return DigestOf(text.data(), text.size());
}
inline Digest DigestOf(std::span<const uint8_t> bytes) {
  return DigestOf(bytes.data(), bytes.size());
}

// What travels from some step on. `reason` is one sentence.
struct Decision {
  uint64_t version = 0;
  Mode mode = Mode::kFull;
  Codec codec = Codec::kFp32;
  Digest mask_digest = {};
  Digest layout_digest = {};
  std::string reason = {};

  static Decision FromC(const pt_decision& from) {
    return {.version = from.version,
            .mode = static_cast<Mode>(from.mode),
            .codec = static_cast<Codec>(from.codec),
            .mask_digest = Digest::FromC(from.mask_digest),
            .layout_digest = Digest::FromC(from.layout_digest),
            .reason = from.reason};
  }
};

// One committed step. The bytes are those of this node's agent, to and from
// other sites; `submitted_elements` counts this rank's after compaction.
struct StepResult {
  // The others made the step without this rank, or had made it already. It has
  // their state now, its own gradients are zeros, and but for world_size and
  // next the rest here says nothing.
  bool missed = false;
  uint64_t step = 0;
  uint32_t attempts = 0;
  uint32_t world_size = 0;
  bool dense = false;
  Mode mode = Mode::kFull;
  Codec codec = Codec::kFp32;
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t elements = 0;
  uint64_t submitted_elements = 0;
  double wait_seconds = 0;
  Decision next;  // In force for the next step.

  static StepResult FromC(const pt_step& from) {
    return {.step = from.step,
            .attempts = from.attempts,
            .world_size = from.world_size,
            .dense = from.dense != 0,
            .mode = static_cast<Mode>(from.mode),
            .codec = static_cast<Codec>(from.codec),
            .sent_bytes = from.sent_bytes,
            .received_bytes = from.received_bytes,
            .elements = from.elements,
            .submitted_elements = from.submitted_elements,
            .wait_seconds = from.wait_seconds,
            .next = Decision::FromC(from.next)};
  }
};

inline std::string ModeName(Mode mode) {
  switch (mode) {
    case Mode::kFull:
      return "FULL";
    case Mode::kCompacted:
      return "COMPACTED";
    case Mode::kTernary:
      return "TERNARY";
  }
  return "mode " + std::to_string(static_cast<int32_t>(mode));
}

inline std::string CodecName(Codec codec) {
  switch (codec) {
    case Codec::kFp32:
      return "fp32";
    case Codec::kBf16:
      return "bf16";
    case Codec::kLevels3:
      return "3 levels";
    case Codec::kLevels5:
      return "5 levels";
    case Codec::kLevels7:
      return "7 levels";
    case Codec::kLevels15:
      return "15 levels";
    case Codec::kLevels31:
      return "31 levels";
  }
  return "codec " + std::to_string(static_cast<int32_t>(codec));
}

// A mode is never shown without its codec: "COMPACTED fp32".
inline std::string ModeText(Mode mode, Codec codec) {
  return ModeName(mode) + " " + CodecName(codec);
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_TYPES_H_
