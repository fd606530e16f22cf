// One bucket of one attempt at one member: from the node's local sum to the
// result that all ranks of the generation share bit for bit.
//
// Rules:
//   - A frame is folded once all its contributions are there, and at once sent
//     on: no frame waits for its chunk.
//   - Contributions are added in one order whatever the order of arrival: the
//     members of the site, then the sites below, ascending; in a swap by site.
//   - Only decoded bytes of the root (in a swap: of both owners) enter a
//     result.
//   - A header is checked before anything is added; a repeated frame changes
//     nothing.
//
// Pure. Thread-compatible. Shares `local` and the payloads with what it sends.
#ifndef PACTRAIN_AGENT_EXCHANGE_BUCKET_EXCHANGE_H_
#define PACTRAIN_AGENT_EXCHANGE_BUCKET_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "agent/codec/codec.h"
#include "agent/exchange/noise.h"
#include "agent/exchange/payload.h"
#include "agent/exchange/schedule.h"
#include "protocol/frame.h"

namespace pactrain::agent {

struct OutgoingFrame {
  int member = 0;
  protocol::FrameHeader header;
  Payload payload;
};

class BucketExchange {
 public:
  struct Options {
    const Schedule* schedule = nullptr;  // Outlives the exchange.
    protocol::BucketContext context;
    uint64_t step = 0;
    uint64_t dither_step = 0;  // As DitherKey() counts.
    uint16_t attempt = 1;
    std::shared_ptr<const float[]>
        local;                 // context.elements of them; Extend().
    absl::Span<float> result;  // As many; written frame by frame.
    bool measure = false;      // Fills noise(), at the cost of more passes.
    bool shorter = true;       // What is encoded: as Codec::Encode().
  };
  explicit BucketExchange(const Options& options);

  // The first `elements` of the local sum are final: sends and folds what they
  // allow. To be called with growing numbers, the last one context.elements;
  // before the first, no element is.
  // InvalidArgument: as Receive(), of a payload that came before.
  absl::Status Extend(uint64_t elements, std::vector<OutgoingFrame>& out);

  // Takes a data frame of this step, attempt and bucket from `member`.
  // InvalidArgument: a field is not what this bucket's schedule expects, and
  // nothing was changed; or the payload is none that its codec writes, and the
  // attempt cannot be finished.
  absl::Status Receive(int member, const protocol::FrameHeader& header,
                       const Payload& payload, std::vector<OutgoingFrame>& out);

  bool done() const { return missing_frames_ == 0; }
  // The result up to the first frame that is missing; final.
  absl::Span<const float> written() const {
    return options_.result.first(written_elements_);
  }
  uint64_t local_elements() const { return local_elements_; }  // Final ones.
  const protocol::BucketContext& context() const { return options_.context; }
  const protocol::Digest& digest() const { return digest_; }
  // What this member encoded and owned, if `measure`; whole once done().
  const ExchangeNoise& noise() const { return noise_; }

 private:
  using Leg = protocol::Leg;

  // One frame of a chunk.
  struct Frame {
    // Of an owned chunk: the contributions that came, parallel to
    // Chunk::sources.
    std::vector<Payload> in;
    uint32_t missing = 0;  // Of `in`.
    Payload own;           // Swap: this site's encoded sum.
    Payload other;         // Swap: the other site's.
    bool done = false;     // The result is written.
  };
  struct Chunk {
    uint32_t number = 0;
    uint32_t elements = 0;
    Schedule::Route route;
    // Of an owned chunk: the other members of the site, then route.children.
    std::vector<int> sources;
    std::vector<Frame> frames;
  };
  // The place of a frame in the bucket.
  struct Piece {
    Chunk* chunk;
    uint32_t frame;
    uint64_t offset;  // In elements, from the start of the bucket.
    uint32_t elements;
  };

  bool Owns(const Chunk& chunk) const;
  Chunk MakeChunk(uint32_t number) const;
  Piece PieceAt(Chunk& chunk, uint32_t frame) const;
  // The local sum of it is final.
  bool IsHere(const Piece& piece) const {
    return piece.offset + piece.elements <= local_elements_;
  }
  // Its local sum has become final.
  absl::Status Start(const Piece& piece, std::vector<OutgoingFrame>& out);
  absl::Status Check(int member, const protocol::FrameHeader& header,
                     const Payload& payload) const;
  // The codec of a leg's bytes.
  protocol::Codec CodecOf(Leg leg) const;
  int SourceIndex(const Chunk& chunk, int member, Leg leg) const;

  // Of what `site` encodes for `leg`; kDown: of the total.
  Dither DitherOf(const Piece& piece, int site, Leg leg) const;

  // All contributions are there: folds, encodes, sends on. An error, here and
  // below: bytes that no encoder writes.
  absl::Status Fold(const Piece& piece, std::vector<OutgoingFrame>& out);
  // The owner of the memory that *sum points into.
  absl::StatusOr<std::shared_ptr<const float[]>> SumOf(const Piece& piece,
                                                       const float** sum);
  // `decoded`, unless null, gets what the others will decode.
  Payload Encode(std::shared_ptr<const float[]> owner, const float* values,
                 const Piece& piece, Leg leg, float* decoded);
  absl::Status Swap(const Piece& piece, std::vector<OutgoingFrame>& out);
  float* ResultOf(const Piece& piece) const {
    return options_.result.data() + piece.offset;
  }
  // The total's bytes are known: writes the result and announces it.
  absl::Status Publish(const Piece& piece, const Payload& bytes,
                       std::vector<OutgoingFrame>& out);
  // The result is written: hands its bytes down.
  void Announce(const Piece& piece, const Payload& bytes,
                std::vector<OutgoingFrame>& out);
  // The result of it is written.
  void MarkWritten(const Piece& piece);
  void Send(const Piece& piece, Leg leg, int member, const Payload& payload,
            std::vector<OutgoingFrame>& out) const;

  const Options options_;
  const protocol::Digest digest_;  // Of the context.
  // Between sites: the context's, or fp32 where there is one site only.
  const protocol::Codec border_;
  const Codec& codec_;
  const Frames frames_;
  const uint32_t chunk_size_;  // In elements; the last one may be short.
  ExchangeNoise noise_;
  std::vector<Chunk> chunks_;
  uint64_t missing_frames_ = 0;  // Of the result.
  uint64_t written_elements_ = 0;
  uint64_t local_elements_ = 0;
  size_t next_chunk_ = 0;    // The first frame that
  uint32_t next_frame_ = 0;  // has not been started.
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_BUCKET_EXCHANGE_H_
