#include "coordinator/core/pin.h"

#include "absl/strings/str_cat.h"

namespace pactrain::coordinator {

using protocol::Mode;

bool Pin::IsMetBy(const protocol::Decision& decision) const {
  return decision.mode == mode && decision.codec == codec;
}

std::string Pin::ToString() const {
  return absl::StrCat(protocol::ModeName(mode), " ",
                      protocol::CodecName(codec));
}

absl::Status CheckPin(const Pin& pin) {
  if (protocol::IsLevels(pin.codec) == (pin.mode == Mode::kTernary)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "pin ", pin.ToString(),
      ": TERNARY goes with 3, 5, 7, 15 or 31 levels, FULL and COMPACTED go "
      "with fp32 or bf16"));
}

}  // namespace pactrain::coordinator
