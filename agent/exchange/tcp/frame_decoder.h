// Cuts the byte stream of a connection into frames.
//
// A header is checked before its payload is allocated, and the payload's CRC
// before the frame is handed on. After an error the stream is out of step: drop
// the decoder with its connection.
//
// Pure: no I/O. Thread-compatible.
#ifndef PACTRAIN_AGENT_EXCHANGE_TCP_FRAME_DECODER_H_
#define PACTRAIN_AGENT_EXCHANGE_TCP_FRAME_DECODER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "agent/exchange/payload.h"
#include "protocol/frame.h"

namespace pactrain::agent {

struct Frame {
  protocol::FrameHeader header;
  Payload payload;
};

class FrameDecoder {
 public:
  // Takes bytes as they came and appends every frame that is now complete.
  //   DataLoss:        wrong magic or CRC.
  //   InvalidArgument: a header field out of range.
  absl::Status Feed(absl::Span<const uint8_t> bytes,
                    std::vector<Frame>* frames);

 private:
  absl::Status FinishFrame(std::vector<Frame>* frames);

  std::array<uint8_t, protocol::kHeaderBytes> header_bytes_{};
  size_t header_filled_ = 0;
  protocol::FrameHeader header_;  // Decoded once header_filled_ is full.
  std::shared_ptr<uint8_t[]> payload_;
  size_t payload_filled_ = 0;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_TCP_FRAME_DECODER_H_
