#include "protocol/frame.h"

#include <cstring>

#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "protocol/frame_bytes.h"
#include "protocol/limits.h"

namespace pactrain::protocol {
namespace {

using internal::Reader;
using internal::Writer;

// Layout: magic, then FrameHeader's fields in order, the header's CRC last.
constexpr size_t kCrcOffset = kHeaderBytes - 4;

bool IsLeg(Leg leg) {
  return (leg >= Leg::kSiteSum && leg <= Leg::kSwap) || leg == Leg::kControl;
}

// Those between magic and CRC.
template <typename Io, typename Header>
void HeaderFields(Io& io, Header& header) {
  io.Field("context", header.context);
  io.Field("step", header.step);
  io.Field("attempt", header.attempt);
  io.Field("model", header.model);
  io.Field("bucket", header.bucket);
  io.Field("chunk", header.chunk);
  io.Field("frame", header.frame);
  io.Field("leg", header.leg);
  io.Field("codec", header.codec);
  io.Field("source", header.source);
  io.Field("after", header.after);
  io.Field("bytes", header.bytes);
  io.Field("elements", header.elements);
  io.Field("payload_crc", header.payload_crc);
}

}  // namespace

void EncodeHeader(const FrameHeader& header, uint8_t out[kHeaderBytes]) {
  Writer w;
  w.Int(kMagic);
  HeaderFields(w, header);
  std::string bytes = w.Take();
  w.Int(base::Crc32c(bytes.data(), kCrcOffset));
  bytes += w.Take();
  std::memcpy(out, bytes.data(), kHeaderBytes);
}

absl::StatusOr<FrameHeader> DecodeHeader(const uint8_t in[kHeaderBytes]) {
  Reader r(absl::MakeConstSpan(in, kHeaderBytes));
  const auto magic = r.Int<uint32_t>("magic");
  if (magic != kMagic) {
    return absl::DataLossError(
        absl::StrFormat("frame: magic is %08x, want %08x: the peer is not an "
                        "agent, or the stream is "
                        "damaged",
                        magic, kMagic));
  }
  FrameHeader h;
  HeaderFields(r, h);
  if (r.Int<uint32_t>("header_crc") != base::Crc32c(in, kCrcOffset)) {
    return absl::DataLossError("frame: header checksum is wrong");
  }
  if (!IsLeg(h.leg)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: unknown leg %d", static_cast<int>(h.leg)));
  }
  if (h.codec < Codec::kFp32 || h.codec > kLastCodec) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: unknown codec %d", static_cast<int>(h.codec)));
  }
  if (h.leg == Leg::kControl && h.after != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: after is %d in control; want 0", h.after));
  }
  const size_t limit =
      h.leg == Leg::kControl ? kMaxControlMessage : kMaxFramePayload;
  if (h.bytes > limit) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: %d bytes; at most %d", h.bytes, limit));
  }
  if (h.elements > kChunkElements) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "frame: %d elements; at most %d", h.elements, kChunkElements));
  }
  return h;
}

Digest BucketContext::ComputeDigest() const {
  base::DigestBuilder digest;
  digest.Add(generation)
      .Add(uint64_t{model})
      .Add(uint64_t{bucket})
      .Add(elements);
  digest.Add(bucket_layout).Add(decision_version);
  digest.Add(static_cast<uint64_t>(mode)).Add(uint64_t{dense});
  digest.Add(static_cast<uint64_t>(codec)).Add(mask_digest);
  digest.Add(static_cast<uint64_t>(op)).Add(dtype);
  return digest.Build();
}

absl::string_view CauseName(Cause cause) {
  switch (cause) {
    case Cause::kNone:
      return "none";
    case Cause::kConnection:
      return "connection";
    case Cause::kStall:
      return "stall";
    case Cause::kChecksum:
      return "checksum";
    case Cause::kResultDigest:
      return "result digest";
    case Cause::kMask:
      return "mask";
    case Cause::kDeadline:
      return "deadline";
    case Cause::kLayout:
      return "layout";
    case Cause::kParameters:
      return "parameters";
    case Cause::kMemberLost:
      return "member lost";
    case Cause::kStraggler:
      return "straggler";
  }
  return "unknown cause";
}

}  // namespace pactrain::protocol
