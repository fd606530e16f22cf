// What waits to be sent on one connection: control, in the order in which it
// came, and then what the connection takes of the pair's data (data_flow.h).
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
#include <utility>
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

// Frames that are sent together: at least one, and no more once they hold
// `max_bytes` or are `max_frames`.
struct Batch {
  Batch(size_t most_bytes, size_t most_frames)
      : max_bytes(most_bytes), max_frames(most_frames) {}
  bool full() const {
    return bytes >= max_bytes || frames.size() >= max_frames;
  }
  void Add(OutFrame frame) {
    bytes += frame.size();
    frames.push_back(std::move(frame));
  }

  size_t max_bytes, max_frames;
  size_t bytes = 0;
  std::vector<OutFrame> frames;
};

class ControlQueue {
 public:
  explicit ControlQueue(size_t max_bytes) : max_bytes_(max_bytes) {}

  // ResourceExhausted: the peer has left more control unread than the limit.
  absl::Status Push(OutFrame frame);
  // From the front, until the batch is full.
  void MoveTo(Batch& batch);

 private:
  const size_t max_bytes_;
  size_t bytes_ = 0;
  std::deque<OutFrame> frames_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_SEND_QUEUE_H_
