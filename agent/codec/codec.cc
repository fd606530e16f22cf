#include "agent/codec/codec.h"

#include "agent/codec/bf16.h"
#include "agent/codec/fp32.h"
#include "agent/codec/levels.h"
#include "base/check.h"

namespace pactrain::agent {

using kernels::Levels;

const Codec& CodecFor(protocol::Codec codec) {
  static const Fp32Codec fp32;
  static const Bf16Codec bf16;
  static const LevelsCodec levels3(Levels::k3);
  static const LevelsCodec levels5(Levels::k5);
  static const LevelsCodec levels7(Levels::k7);
  static const LevelsCodec levels15(Levels::k15);
  static const LevelsCodec levels31(Levels::k31);
  switch (codec) {
    case protocol::Codec::kFp32:
      return fp32;
    case protocol::Codec::kBf16:
      return bf16;
    case protocol::Codec::kLevels3:
      return levels3;
    case protocol::Codec::kLevels5:
      return levels5;
    case protocol::Codec::kLevels7:
      return levels7;
    case protocol::Codec::kLevels15:
      return levels15;
    case protocol::Codec::kLevels31:
      return levels31;
  }
  PT_CHECK(false);  // Every border has checked it.
}

}  // namespace pactrain::agent
