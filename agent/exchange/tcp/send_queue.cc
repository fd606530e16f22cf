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

absl::Status SendQueue::PushControl(OutFrame frame) {
  if (control_bytes_ + frame.size() > max_control_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(control_bytes_, " bytes of control messages are unread, ",
                     max_control_bytes_, " allowed"));
  }
  control_bytes_ += frame.size();
  control_.push_back(std::move(frame));
  return absl::OkStatus();
}

void SendQueue::PushData(OutFrame frame) { data_.push_back(std::move(frame)); }

std::vector<OutFrame> SendQueue::Take(size_t max_bytes, size_t max_frames) {
  std::vector<OutFrame> batch;
  size_t bytes = 0;
  while (!empty() && bytes < max_bytes && batch.size() < max_frames) {
    std::deque<OutFrame>& queue = control_.empty() ? data_ : control_;
    if (&queue == &control_) control_bytes_ -= queue.front().size();
    bytes += queue.front().size();
    batch.push_back(std::move(queue.front()));
    queue.pop_front();
  }
  return batch;
}

}  // namespace pactrain::agent
