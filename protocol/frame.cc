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

bool IsLeg(uint8_t leg) {
  return (leg >= static_cast<uint8_t>(Leg::kSiteSum) &&
          leg <= static_cast<uint8_t>(Leg::kSwap)) ||
         leg == static_cast<uint8_t>(Leg::kControl);
}

}  // namespace

void EncodeHeader(const FrameHeader& header, uint8_t out[kHeaderBytes]) {
  Writer w;
  w.Int(kMagic);
  w.Write(header.context);
  w.Int(header.step);
  w.Int(header.attempt);
  w.Int(header.model);
  w.Int(header.bucket);
  w.Int(header.chunk);
  w.Int(header.frame);
  w.Int(static_cast<uint8_t>(header.leg));
  w.Int(static_cast<uint8_t>(header.codec));
  w.Int(header.source);
  w.Int(header.after);
  w.Int(header.bytes);
  w.Int(header.elements);
  w.Int(header.payload_crc);
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
  h.context = r.ReadDigest("context");
  h.step = r.Int<uint64_t>("step");
  h.attempt = r.Int<uint16_t>("attempt");
  h.model = r.Int<uint16_t>("model");
  h.bucket = r.Int<uint32_t>("bucket");
  h.chunk = r.Int<uint32_t>("chunk");
  h.frame = r.Int<uint16_t>("frame");
  const auto leg = r.Int<uint8_t>("leg");
  const auto codec = r.Int<uint8_t>("codec");
  h.source = r.Int<uint16_t>("source");
  h.after = r.Int<uint16_t>("after");
  h.bytes = r.Int<uint32_t>("bytes");
  h.elements = r.Int<uint32_t>("elements");
  h.payload_crc = r.Int<uint32_t>("payload_crc");
  if (r.Int<uint32_t>("header_crc") != base::Crc32c(in, kCrcOffset)) {
    return absl::DataLossError("frame: header checksum is wrong");
  }
  if (!IsLeg(leg)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: unknown leg %d", leg));
  }
  if (codec < static_cast<uint8_t>(Codec::kFp32) ||
      codec > static_cast<uint8_t>(kLastCodec)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: unknown codec %d", codec));
  }
  h.leg = static_cast<Leg>(leg);
  if (h.leg == Leg::kControl && h.after != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: after is %d in control; want 0", h.after));
  }
  h.codec = static_cast<Codec>(codec);
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
