#include "agent/core/wire_convert.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

// A range check whose error says what came and what is allowed.
absl::Status CheckRange(const char* field, uint64_t value, uint64_t low,
                        uint64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s is %d; allowed are %d to %d", field, value, low, high));
}

}  // namespace

wire::Decision ToWire(const protocol::Decision& decision) {
  wire::Decision out = {};
  out.version = decision.version;
  out.mode = static_cast<uint8_t>(decision.mode);
  out.codec = static_cast<uint8_t>(decision.codec);
  out.mask_digest = ToWire(decision.mask_digest);
  out.layout_digest = ToWire(decision.layout_digest);
  SetText(decision.reason, out.reason);
  return out;
}

wire::Waiting MakeWaiting(absl::string_view text) {
  auto waiting = MakeMessage<wire::Waiting>(wire::Kind::kWaiting);
  SetText(text, waiting.text);
  return waiting;
}

wire::Failed MakeFailed(uint64_t step, wire::Code code, bool final,
                        absl::string_view text) {
  auto failed = MakeMessage<wire::Failed>(wire::Kind::kFailed);
  failed.step = step;
  failed.code = code;
  failed.final = final ? 1 : 0;
  SetText(text, failed.text);
  return failed;
}

absl::StatusOr<HelloFields> ParseHello(const wire::Hello& hello) {
  constexpr uint64_t kMaxSlot =
      protocol::kMaxElements * 4 +
      uint64_t{protocol::kMaxBuckets} * wire::kSlotAlign;
  RETURN_IF_ERROR(CheckRange("the version of the trainer library's protocol",
                             hello.version, wire::kVersion, wire::kVersion));
  RETURN_IF_ERROR(
      CheckRange("world_size", hello.world_size, 1, protocol::kMaxRanks));
  RETURN_IF_ERROR(CheckRange("rank", hello.rank, 0, hello.world_size - 1));
  RETURN_IF_ERROR(
      CheckRange("model", hello.model, 0, protocol::kMaxModels - 1));
  RETURN_IF_ERROR(
      CheckRange("elements", hello.elements, 1, protocol::kMaxElements));
  RETURN_IF_ERROR(CheckRange("slot_bytes", hello.slot_bytes, 1, kMaxSlot));
  HelloFields fields;
  fields.group = {GetText(hello.job), static_cast<uint16_t>(hello.model)};
  RETURN_IF_ERROR(protocol::CheckName("job", fields.group.job));
  fields.site = GetText(hello.site);
  fields.slot_bytes = hello.slot_bytes;
  protocol::Trainer& trainer = fields.trainer;
  trainer.rank = hello.rank;
  trainer.world_size = hello.world_size;
  trainer.attach_id = FromWire(hello.attach_id);
  trainer.launch = GetText(hello.launch);
  trainer.model_digest = FromWire(hello.model_digest);
  trainer.model_summary = GetText(hello.model_summary);
  trainer.elements = hello.elements;
  trainer.resume_step = hello.resume_step;
  RETURN_IF_ERROR(
      CheckRange("on_shrink", hello.on_shrink, 0,
                 static_cast<uint8_t>(protocol::OnShrink::kContinue)));
  trainer.on_shrink = static_cast<protocol::OnShrink>(hello.on_shrink);
  RETURN_IF_ERROR(
      CheckRange("resume_step", hello.resume_step, 0, protocol::kMaxStep));
  RETURN_IF_ERROR(
      CheckRange("committed", hello.committed, 0, protocol::kMaxStep));
  RETURN_IF_ERROR(CheckRange("replace", hello.replace, 0, 1));
  trainer.lineage = {FromWire(hello.lineage), hello.committed};
  trainer.parameters = FromWire(hello.parameters);
  trainer.replace = hello.replace != 0;
  trainer.last_attach_id = FromWire(hello.last_attach_id);
  trainer.last_generation = hello.last_generation;
  std::copy_n(hello.seat, wire::kSeatBytes, fields.seat.bytes.begin());
  RETURN_IF_ERROR(CheckRange("declared_elements", hello.declared_elements, 0,
                             protocol::kMaxElements));
  RETURN_IF_ERROR(CheckRange("kept_elements", hello.kept_elements, 0,
                             hello.declared_elements));
  trainer.declared = {FromWire(hello.mask_digest),
                      FromWire(hello.layout_digest), hello.kept_elements,
                      hello.declared_elements};
  trainer.onset.activate_every = hello.activate_every;
  trainer.onset.pin_from = hello.pin_from;
  if (hello.pin_from != 0) {
    RETURN_IF_ERROR(CheckRange("pin_mode", hello.pin_mode, 1,
                               static_cast<uint8_t>(protocol::Mode::kTernary)));
    RETURN_IF_ERROR(CheckRange("pin_codec", hello.pin_codec, 1,
                               static_cast<uint8_t>(protocol::kLastCodec)));
    trainer.onset.pin_mode = static_cast<protocol::Mode>(hello.pin_mode);
    trainer.onset.pin_codec = static_cast<protocol::Codec>(hello.pin_codec);
  }
  RETURN_IF_ERROR(protocol::CheckOnset(trainer.onset));
  if (trainer.attach_id.empty() || trainer.model_digest.empty()) {
    return absl::InvalidArgumentError(
        "attach_id and model_digest may not be zero");
  }
  if (trainer.launch.size() > protocol::kMaxNameLength ||
      trainer.model_summary.size() > 255) {
    return absl::InvalidArgumentError("launch or model_summary has no end");
  }
  return fields;
}

}  // namespace pactrain::agent
