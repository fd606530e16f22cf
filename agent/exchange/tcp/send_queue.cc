#include "agent/exchange/tcp/send_queue.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

Payload ControlPayload(const protocol::PeerControl& control) {
  auto text =
      std::make_shared<const std::string>(protocol::EncodeControl(control));
  const auto* data = reinterpret_cast<const uint8_t*>(text->data());
  return Payload{text, absl::MakeConstSpan(data, text->size())};
}

}  // namespace

OutFrame::OutFrame(protocol::FrameHeader fields, Payload content)
    : payload(std::move(content)) {
  PT_CHECK(payload.bytes.size() <= protocol::kMaxFramePayload);
  fields.bytes = static_cast<uint32_t>(payload.bytes.size());
  fields.payload_crc = base::Crc32c(payload.bytes.data(), payload.bytes.size());
  protocol::EncodeHeader(fields, header.data());
}

OutFrame::OutFrame(const protocol::PeerControl& control)
    : OutFrame(protocol::FrameHeader{}, ControlPayload(control)) {}

absl::Status ControlQueue::Push(OutFrame frame) {
  if (bytes_ + frame.size() > max_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(bytes_, " bytes of control messages are unread, ",
                     max_bytes_, " allowed"));
  }
  bytes_ += frame.size();
  frames_.push_back(std::move(frame));
  return absl::OkStatus();
}

void ControlQueue::MoveTo(Batch& batch) {
  while (!frames_.empty() && !batch.full()) {
    bytes_ -= frames_.front().size();
    batch.Add(std::move(frames_.front()));
    frames_.pop_front();
  }
}

}  // namespace pactrain::agent
