// What waits to be sent on one connection: control frames go before data
// frames, each kind in the order in which it came.
//
// Control is bounded here, because a peer that does not read must not make it
// grow; data is bounded by the memory of the open steps whose buffers it
// shares.
//
// Thread-compatible. A data payload is shared, never copied.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_SEND_QUEUE_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_SEND_QUEUE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "agent/exchange/payload.h"
#include "protocol/frame.h"

namespace pactrain::agent {

// A frame ready for the wire.
struct OutFrame {
  // Fills in `bytes` and `payload_crc` of the header.
  OutFrame(protocol::FrameHeader header, Payload payload);
  // A control frame.
  explicit OutFrame(const protocol::PeerControl& control);

  size_t size() const { return header.size() + payload.bytes.size(); }

  std::array<uint8_t, protocol::kHeaderBytes> header;
  Payload payload;
};

class SendQueue {
 public:
  explicit SendQueue(size_t max_control_bytes)
      : max_control_bytes_(max_control_bytes) {}

  // ResourceExhausted: the peer has left more control unread than the limit.
  absl::Status PushControl(OutFrame frame);
  void PushData(OutFrame frame);

  // Takes frames from the front until they hold `max_bytes` or are
  // `max_frames`: at least one unless the queue is empty.
  std::vector<OutFrame> Take(size_t max_bytes, size_t max_frames);

  bool empty() const { return control_.empty() && data_.empty(); }

 private:
  const size_t max_control_bytes_;
  size_t control_bytes_ = 0;
  std::deque<OutFrame> control_;
  std::deque<OutFrame> data_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_SEND_QUEUE_H_
