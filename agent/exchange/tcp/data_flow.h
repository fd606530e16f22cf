// The data that two agents send each other over all their connections: one
// queue from which each connection takes as it has room, lanes only while the
// link is far, and what keeps data behind the control that was sent before it,
// which goes on one connection only.
//
// The oldest unfinished chunk goes first, so that what its owner waits for does
// not stand behind chunks whose turn comes later.
//
// Thread-compatible.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_DATA_FLOW_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_DATA_FLOW_H_

#include <cstdint>
#include <map>
#include <tuple>

#include "agent/exchange/payload.h"
#include "agent/exchange/tcp/send_queue.h"
#include "protocol/frame.h"

namespace pactrain::agent {

class DataFlow {
 public:
  void Push(protocol::FrameHeader header, Payload payload);
  bool empty() const { return frames_.empty(); }
  // The oldest ones, until the batch is full.
  void MoveTo(Batch& batch);

  // What the pair's own connection, which always carries data, finds.
  void set_far(bool far) { far_ = far; }
  bool far() const { return far_; }

  // A GroupControl is sent after the data that was pushed before.
  void OnControlSent() { ++control_sent_; }
  void OnControlHeard() { ++control_heard_; }
  // The control that was sent before this frame has been heard. Sender and
  // receiver are never half the numbers apart: so much control is refused.
  bool IsDue(const protocol::FrameHeader& header) const {
    return static_cast<int16_t>(header.after - control_heard_) <= 0;
  }

 private:
  // Of a step's frames, the smaller bucket and chunk, then the first pushed.
  using Age = std::tuple<uint32_t, uint32_t, uint64_t>;

  std::map<Age, OutFrame> frames_;
  uint64_t pushed_ = 0;
  bool far_ = false;
  uint16_t control_sent_ = 0;
  uint16_t control_heard_ = 0;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_DATA_FLOW_H_
