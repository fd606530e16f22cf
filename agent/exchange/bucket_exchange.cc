#include "agent/exchange/bucket_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "agent/exchange/combine.h"
#include "base/check.h"

namespace pactrain::agent {
namespace {

using protocol::FrameHeader;
using protocol::kFrameElements;

// Values that start in the middle of memory that somebody keeps alive.
Payload BytesOf(std::shared_ptr<const void> owner, const float* values,
                size_t elements) {
  return {std::move(owner),
          absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(values),
                              elements * 4)};
}

const float* Floats(const Payload& payload) {
  return reinterpret_cast<const float*>(payload.bytes.data());
}

// fp32 and bf16: no dither, and any bytes can be decoded.
void Decode(const Codec& codec, const Payload& in, size_t elements,
            float* out) {
  PT_CHECK(codec.Decode(in.bytes.data(), elements, Dither{}, out).ok());
}

}  // namespace

BucketExchange::BucketExchange(const Options& options)
    : options_(options),
      digest_(options.context.ComputeDigest()),
      codec_(CodecFor(options.context.codec)) {
  const uint64_t elements = options_.context.elements;
  PT_CHECK(options_.result.size() == elements);
  const uint32_t chunks = ChunkCount(elements);
  chunks_.reserve(chunks);
  for (uint32_t c = 0; c < chunks; ++c) {
    chunks_.push_back(MakeChunk(c));
    missing_frames_ += chunks_.back().frames.size();
  }
}

bool BucketExchange::Owns(const Chunk& chunk) const {
  return chunk.route.owner == options_.schedule->me();
}

BucketExchange::Chunk BucketExchange::MakeChunk(uint32_t number) const {
  const uint64_t elements = options_.context.elements;
  Chunk chunk;
  chunk.number = number;
  chunk.elements = ChunkElements(elements, number);
  chunk.route = options_.schedule->RouteOf(number, ChunkCount(elements));
  chunk.frames.resize(FrameCount(chunk.elements));
  if (!Owns(chunk)) return chunk;
  for (int member : options_.schedule->site_members()) {
    if (member != options_.schedule->me()) chunk.sources.push_back(member);
  }
  chunk.sources.insert(chunk.sources.end(), chunk.route.children.begin(),
                       chunk.route.children.end());
  for (Frame& frame : chunk.frames) {
    frame.in.resize(chunk.sources.size());
    frame.missing = static_cast<uint32_t>(chunk.sources.size());
  }
  return chunk;
}

BucketExchange::Piece BucketExchange::PieceAt(Chunk& chunk,
                                              uint32_t frame) const {
  return {&chunk, frame,
          uint64_t{chunk.number} * protocol::kChunkElements +
              uint64_t{frame} * kFrameElements,
          FrameElements(chunk.elements, frame)};
}

void BucketExchange::Start(std::vector<OutgoingFrame>& out) {
  for (Chunk& chunk : chunks_) {
    for (uint32_t f = 0; f < chunk.frames.size(); ++f) {
      const Piece piece = PieceAt(chunk, f);
      if (!Owns(chunk)) {
        Send(piece, Leg::kSiteSum, chunk.route.owner,
             BytesOf(options_.local, options_.local.get() + piece.offset,
                     piece.elements),
             out);
      } else if (chunk.frames[f].missing == 0) {
        Fold(piece, out);
      }
    }
  }
}

protocol::Codec BucketExchange::CodecOf(Leg leg) const {
  const bool exact = leg == Leg::kSiteSum ||
                     (leg == Leg::kFanOut && options_.schedule->swap());
  return exact ? protocol::Codec::kFp32 : options_.context.codec;
}

int BucketExchange::SourceIndex(const Chunk& chunk, int member, Leg leg) const {
  const size_t in_site = options_.schedule->site_members().size() - 1;
  const auto begin = chunk.sources.begin() + (leg == Leg::kUp ? in_site : 0);
  const auto end =
      leg == Leg::kUp ? chunk.sources.end() : chunk.sources.begin() + in_site;
  const auto it = std::find(begin, end, member);
  return it == end ? -1 : static_cast<int>(it - chunk.sources.begin());
}

absl::Status BucketExchange::Check(int member, const FrameHeader& header,
                                   const Payload& payload) const {
  const auto refuse = [&](const char* field, uint64_t got, uint64_t want) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "frame of member %d, step %d, bucket %d, leg %d: %s is %d, want %d",
        member, header.step, header.bucket, static_cast<int>(header.leg), field,
        got, want));
  };
  if (header.step != options_.step)
    return refuse("step", header.step, options_.step);
  if (header.attempt != options_.attempt) {
    return refuse("attempt", header.attempt, options_.attempt);
  }
  if (header.context != digest_) {
    return refuse("context", header.context.hi, digest_.hi);
  }
  if (header.bucket != options_.context.bucket) {
    return refuse("bucket", header.bucket, options_.context.bucket);
  }
  if (header.source != member) return refuse("source", header.source, member);
  if (header.chunk >= chunks_.size()) {
    return refuse("chunk", header.chunk, chunks_.size());
  }
  const Chunk& chunk = chunks_[header.chunk];
  if (header.frame >= chunk.frames.size()) {
    return refuse("frame", header.frame, chunk.frames.size());
  }
  const uint32_t elements = FrameElements(chunk.elements, header.frame);
  if (header.elements != elements)
    return refuse("elements", header.elements, elements);
  const protocol::Codec codec = CodecOf(header.leg);
  if (header.codec != codec) {
    return refuse("codec", static_cast<int>(header.codec),
                  static_cast<int>(codec));
  }
  const size_t bytes = CodecFor(codec).BytesFor(elements);
  if (header.bytes != bytes || payload.bytes.size() != bytes) {
    return refuse("bytes", payload.bytes.size(), bytes);
  }
  int expected = Schedule::kNobody;
  if (header.leg == Leg::kControl) return refuse("leg", 16, 1);
  if (header.leg == Leg::kFanOut) {
    expected = Owns(chunk) ? Schedule::kNobody : chunk.route.owner;
  } else if (header.leg == Leg::kDown) {
    expected = chunk.route.parent;
  } else if (header.leg == Leg::kSwap) {
    expected = chunk.route.swap;
  } else if (Owns(chunk) && SourceIndex(chunk, member, header.leg) >= 0) {
    expected = member;
  }
  if (expected != member) return refuse("sender of this leg", member, expected);
  return absl::OkStatus();
}

absl::Status BucketExchange::Receive(int member, const FrameHeader& header,
                                     const Payload& payload,
                                     std::vector<OutgoingFrame>& out) {
  absl::Status status = Check(member, header, payload);
  if (!status.ok()) return status;
  Chunk& chunk = chunks_[header.chunk];
  Frame& frame = chunk.frames[header.frame];
  const Piece piece = PieceAt(chunk, header.frame);
  switch (header.leg) {
    case Leg::kFanOut:
    case Leg::kDown:
      if (!frame.done) Publish(piece, header.codec, payload, out);
      break;
    case Leg::kSwap:
      if (frame.other.bytes.empty()) {
        frame.other = payload;
        if (!frame.own.bytes.empty()) Swap(piece, out);
      }
      break;
    default: {
      Payload& in = frame.in[SourceIndex(chunk, member, header.leg)];
      if (frame.missing == 0 || !in.bytes.empty()) break;
      in = payload;
      if (--frame.missing == 0) Fold(piece, out);
    }
  }
  return absl::OkStatus();
}

// Returns the owner of the memory that *sum points into.
std::shared_ptr<const float[]> BucketExchange::SumOf(const Piece& piece,
                                                     const float** sum) const {
  const Frame& frame = piece.chunk->frames[piece.frame];
  const float* own = options_.local.get() + piece.offset;
  if (frame.in.empty()) {  // This node alone: its local sum is the total.
    *sum = own;
    return options_.local;
  }
  const auto& members = options_.schedule->site_members();
  std::vector<const float*> terms;
  std::vector<std::vector<float>> decoded(piece.chunk->route.children.size());
  size_t next = 0;
  for (int member : members) {
    terms.push_back(
        member == options_.schedule->me() ? own : Floats(frame.in[next++]));
  }
  for (std::vector<float>& values : decoded) {
    const Payload& in = frame.in[next++];
    if (options_.context.codec == protocol::Codec::kFp32) {
      terms.push_back(Floats(in));
      continue;
    }
    values.resize(piece.elements);
    Decode(codec_, in, piece.elements, values.data());
    terms.push_back(values.data());
  }
  auto total = std::make_shared_for_overwrite<float[]>(piece.elements);
  Combine(options_.context.op, terms, piece.elements, total.get());
  *sum = total.get();
  return total;
}

Payload BucketExchange::Encode(std::shared_ptr<const float[]> owner,
                               const float* values, uint32_t elements) const {
  if (options_.context.codec == protocol::Codec::kFp32) {
    return BytesOf(std::move(owner), values, elements);
  }
  const size_t bytes = codec_.BytesFor(elements);
  auto encoded = std::make_shared_for_overwrite<uint8_t[]>(bytes);
  codec_.Encode(values, elements, Dither{}, encoded.get());
  const uint8_t* data = encoded.get();
  return {std::move(encoded), absl::MakeConstSpan(data, bytes)};
}

void BucketExchange::Fold(const Piece& piece, std::vector<OutgoingFrame>& out) {
  Frame& frame = piece.chunk->frames[piece.frame];
  const float* sum = nullptr;
  std::shared_ptr<const float[]> owner = SumOf(piece, &sum);
  const Payload encoded = Encode(std::move(owner), sum, piece.elements);
  for (Payload& in : frame.in) in = {};
  const Schedule::Route& route = piece.chunk->route;
  if (route.swap != Schedule::kNobody) {
    frame.own = encoded;
    Send(piece, Leg::kSwap, route.swap, encoded, out);
    if (!frame.other.bytes.empty()) Swap(piece, out);
  } else if (route.parent != Schedule::kNobody) {
    Send(piece, Leg::kUp, route.parent, encoded, out);
  } else {
    Publish(piece, options_.context.codec, encoded, out);
  }
}

void BucketExchange::Swap(const Piece& piece, std::vector<OutgoingFrame>& out) {
  Frame& frame = piece.chunk->frames[piece.frame];
  const bool first = options_.schedule->site() == 0;
  const Payload* in[2] = {first ? &frame.own : &frame.other,
                          first ? &frame.other : &frame.own};
  std::vector<float> decoded[2];
  const float* terms[2];
  for (int site = 0; site < 2; ++site) {
    decoded[site].resize(piece.elements);
    Decode(codec_, *in[site], piece.elements, decoded[site].data());
    terms[site] = decoded[site].data();
  }
  auto total = std::make_shared_for_overwrite<float[]>(piece.elements);
  Combine(options_.context.op, terms, piece.elements, total.get());
  const float* values = total.get();
  frame.own = {};  // `other` stays: it tells a repeated frame.
  Publish(piece, protocol::Codec::kFp32,
          BytesOf(std::move(total), values, piece.elements), out);
}

void BucketExchange::Publish(const Piece& piece, protocol::Codec codec,
                             const Payload& bytes,
                             std::vector<OutgoingFrame>& out) {
  Frame& frame = piece.chunk->frames[piece.frame];
  Decode(CodecFor(codec), bytes, piece.elements,
         options_.result.data() + piece.offset);
  frame.done = true;
  --missing_frames_;
  if (!Owns(*piece.chunk)) return;
  for (int child : piece.chunk->route.children) {
    Send(piece, Leg::kDown, child, bytes, out);
  }
  for (int member : options_.schedule->site_members()) {
    if (member != options_.schedule->me()) {
      Send(piece, Leg::kFanOut, member, bytes, out);
    }
  }
}

void BucketExchange::Send(const Piece& piece, Leg leg, int member,
                          const Payload& payload,
                          std::vector<OutgoingFrame>& out) const {
  FrameHeader header;
  header.context = digest_;
  header.step = options_.step;
  header.attempt = options_.attempt;
  header.model = options_.context.model;
  header.bucket = options_.context.bucket;
  header.chunk = piece.chunk->number;
  header.frame = static_cast<uint16_t>(piece.frame);
  header.leg = leg;
  header.codec = CodecOf(leg);
  header.source = static_cast<uint16_t>(options_.schedule->me());
  header.bytes = static_cast<uint32_t>(payload.bytes.size());
  header.elements = piece.elements;
  out.push_back({member, header, payload});
}

}  // namespace pactrain::agent
