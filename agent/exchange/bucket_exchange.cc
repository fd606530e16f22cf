#include "agent/exchange/bucket_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "agent/codec/dither.h"
#include "agent/exchange/combine.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/weakened.h"

namespace pactrain::agent {
namespace {

using protocol::FrameHeader;

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

}  // namespace

BucketExchange::BucketExchange(const Options& options)
    : options_(options),
      digest_(options.context.ComputeDigest()),
      border_(options.schedule->sites() > 1 ? options.context.codec
                                            : protocol::Codec::kFp32),
      codec_(CodecFor(border_)),
      frames_(border_),
      chunk_size_(options.schedule->ChunkSize(options.context.elements,
                                              frames_.size())) {
  const uint64_t elements = options_.context.elements;
  PT_CHECK(options_.result.size() == elements);
  const uint32_t chunks = ChunkCount(elements, chunk_size_);
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
  chunk.elements = ChunkElements(elements, chunk_size_, number);
  chunk.route =
      options_.schedule->RouteOf(number, ChunkCount(elements, chunk_size_));
  chunk.frames.resize(frames_.CountOf(chunk.elements));
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
  return {
      &chunk, frame,
      uint64_t{chunk.number} * chunk_size_ + uint64_t{frame} * frames_.size(),
      frames_.ElementsOf(chunk.elements, frame)};
}

absl::Status BucketExchange::Extend(uint64_t elements,
                                    std::vector<OutgoingFrame>& out) {
  PT_CHECK(elements >= local_elements_);
  PT_CHECK(elements <= options_.context.elements);
  local_elements_ = elements;
  for (; next_chunk_ < chunks_.size(); ++next_chunk_, next_frame_ = 0) {
    Chunk& chunk = chunks_[next_chunk_];
    for (; next_frame_ < chunk.frames.size(); ++next_frame_) {
      const Piece piece = PieceAt(chunk, next_frame_);
      if (!IsHere(piece)) return absl::OkStatus();
      RETURN_IF_ERROR(Start(piece, out));
    }
  }
  return absl::OkStatus();
}

absl::Status BucketExchange::Start(const Piece& piece,
                                   std::vector<OutgoingFrame>& out) {
  const Chunk& chunk = *piece.chunk;
  if (Owns(chunk)) {
    return chunk.frames[piece.frame].missing == 0 ? Fold(piece, out)
                                                  : absl::OkStatus();
  }
  Send(piece, Leg::kSiteSum, chunk.route.owner,
       BytesOf(options_.local, options_.local.get() + piece.offset,
               piece.elements),
       out);
  return absl::OkStatus();
}

protocol::Codec BucketExchange::CodecOf(Leg leg) const {
  const bool exact = leg == Leg::kSiteSum ||
                     (leg == Leg::kFanOut && options_.schedule->swap());
  return exact ? protocol::Codec::kFp32 : border_;
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
  if (header.step != options_.step && !PT_WEAKENED(FramesOfOldSteps))
    return refuse("step", header.step, options_.step);
  if (header.attempt != options_.attempt && !PT_WEAKENED(FramesOfOldAttempts) &&
      !PT_WEAKENED(FramesOfOldSteps)) {
    return refuse("attempt", header.attempt, options_.attempt);
  }
  if (header.context != digest_ && !PT_WEAKENED(ContextsMayDiffer)) {
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
  const uint32_t elements = frames_.ElementsOf(chunk.elements, header.frame);
  if (header.elements != elements)
    return refuse("elements", header.elements, elements);
  const protocol::Codec codec = CodecOf(header.leg);
  if (header.codec != codec) {
    return refuse("codec", static_cast<int>(header.codec),
                  static_cast<int>(codec));
  }
  const Codec::Bytes bytes = CodecFor(codec).BytesFor(elements);
  const size_t size = payload.bytes.size();
  if (header.bytes != size) return refuse("bytes", size, header.bytes);
  if (size < bytes.least) return refuse("bytes", size, bytes.least);
  if (size > bytes.most) return refuse("bytes", size, bytes.most);
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
      if (!frame.done) return Publish(piece, payload, out);
      break;
    case Leg::kSwap:
      if (frame.other.bytes.empty()) {
        frame.other = payload;
        if (!frame.own.bytes.empty()) return Swap(piece, out);
      }
      break;
    default: {
      Payload& in = frame.in[SourceIndex(chunk, member, header.leg)];
      if (frame.missing == 0) break;
      if (!in.bytes.empty() && !PT_WEAKENED(FramesCountTwice)) break;
      in = payload;
      if (--frame.missing == 0 && IsHere(piece)) return Fold(piece, out);
    }
  }
  return absl::OkStatus();
}

Dither BucketExchange::DitherOf(const Piece& piece, int site, Leg leg) const {
  if (!protocol::IsLevels(border_)) return {};
  return {DitherKey(options_.context.model, options_.dither_step,
                    options_.context.bucket, static_cast<uint16_t>(site), leg),
          static_cast<uint32_t>(piece.offset)};
}

absl::StatusOr<std::shared_ptr<const float[]>> BucketExchange::SumOf(
    const Piece& piece, const float** sum) {
  const Frame& frame = piece.chunk->frames[piece.frame];
  const auto& members = options_.schedule->site_members();
  const std::vector<int>& children = piece.chunk->route.children;
  const float* own = options_.local.get() + piece.offset;
  std::vector<const float*> terms;
  size_t next = 0;
  for (int member : members) {
    terms.push_back(
        member == options_.schedule->me() ? own : Floats(frame.in[next++]));
  }
  std::shared_ptr<const float[]> owner = options_.local;
  *sum = own;
  const auto add_up = [&] {
    if (terms.size() == 1) return;
    auto total = std::make_shared_for_overwrite<float[]>(piece.elements);
    Combine(options_.context.op, terms, piece.elements, total.get());
    *sum = total.get();
    owner = std::move(total);
  };
  if (options_.measure) {
    // Folding on from the site's own sum gives the same bits.
    add_up();
    terms.assign(1, *sum);
    noise_.site_squares += SumOfSquares(*sum, piece.elements);
  }
  const std::shared_ptr<const float[]> site_sum = owner;  // Still needed.
  std::vector<std::vector<float>> decoded(children.size());
  for (size_t c = 0; c < children.size(); ++c) {
    const Payload& in = frame.in[next++];
    if (border_ == protocol::Codec::kFp32) {
      terms.push_back(Floats(in));
      continue;
    }
    decoded[c].resize(piece.elements);
    const int site = options_.schedule->SiteOf(children[c]);
    RETURN_IF_ERROR(codec_.Decode(in.bytes, piece.elements,
                                  DitherOf(piece, site, Leg::kUp),
                                  decoded[c].data()));
    terms.push_back(decoded[c].data());
  }
  add_up();
  return owner;
}

Payload BucketExchange::Encode(std::shared_ptr<const float[]> owner,
                               const float* values, const Piece& piece, Leg leg,
                               float* decoded) {
  // Encoders of n levels measure what they read.
  const bool measures = protocol::IsLevels(border_);
  if (options_.measure && !measures) {
    noise_.encoded_squares += SumOfSquares(values, piece.elements);
  }
  if (border_ == protocol::Codec::kFp32) {
    if (decoded != nullptr) std::copy_n(values, piece.elements, decoded);
    return BytesOf(std::move(owner), values, piece.elements);
  }
  auto memory = std::make_shared_for_overwrite<uint8_t[]>(
      codec_.BytesFor(piece.elements).most);
  const Encoded encoded = codec_.Encode(
      values, piece.elements, DitherOf(piece, options_.schedule->site(), leg),
      options_.shorter, memory.get(), decoded);
  if (options_.measure && measures) {
    noise_.encoded_squares += encoded.noise.input_squared;
    noise_.error_squares += encoded.noise.error_squared;
    noise_.clip_squares += encoded.noise.clip_squared;
  }
  const uint8_t* data = memory.get();
  return {std::move(memory), absl::MakeConstSpan(data, encoded.bytes)};
}

absl::Status BucketExchange::Fold(const Piece& piece,
                                  std::vector<OutgoingFrame>& out) {
  Frame& frame = piece.chunk->frames[piece.frame];
  const Schedule::Route& route = piece.chunk->route;
  const Leg leg = route.swap != Schedule::kNobody     ? Leg::kSwap
                  : route.parent != Schedule::kNobody ? Leg::kUp
                                                      : Leg::kDown;
  const float* sum = nullptr;
  ASSIGN_OR_RETURN(std::shared_ptr<const float[]> owner, SumOf(piece, &sum));
  // The root's own result comes with its encoding.
  const Payload encoded = Encode(std::move(owner), sum, piece, leg,
                                 leg == Leg::kDown ? ResultOf(piece) : nullptr);
  for (Payload& in : frame.in) in = {};
  if (leg == Leg::kSwap) {
    frame.own = encoded;
    Send(piece, leg, route.swap, encoded, out);
    return frame.other.bytes.empty() ? absl::OkStatus() : Swap(piece, out);
  }
  if (leg == Leg::kUp) {
    Send(piece, leg, route.parent, encoded, out);
    return absl::OkStatus();
  }
  Announce(piece, encoded, out);
  return absl::OkStatus();
}

absl::Status BucketExchange::Swap(const Piece& piece,
                                  std::vector<OutgoingFrame>& out) {
  Frame& frame = piece.chunk->frames[piece.frame];
  const bool first = options_.schedule->site() == 0;
  const Payload* in[2] = {first ? &frame.own : &frame.other,
                          first ? &frame.other : &frame.own};
  std::vector<float> decoded[2];
  const float* terms[2];
  for (int site = 0; site < 2; ++site) {
    decoded[site].resize(piece.elements);
    RETURN_IF_ERROR(codec_.Decode(in[site]->bytes, piece.elements,
                                  DitherOf(piece, site, Leg::kSwap),
                                  decoded[site].data()));
    terms[site] = decoded[site].data();
  }
  auto total = std::make_shared_for_overwrite<float[]>(piece.elements);
  Combine(options_.context.op, terms, piece.elements, total.get());
  const float* values = total.get();
  frame.own = {};  // `other` stays: it tells a repeated frame.
  return Publish(piece, BytesOf(std::move(total), values, piece.elements), out);
}

absl::Status BucketExchange::Publish(const Piece& piece, const Payload& bytes,
                                     std::vector<OutgoingFrame>& out) {
  const int root = options_.schedule->RootSiteOf(piece.chunk->number);
  RETURN_IF_ERROR(CodecFor(CodecOf(Leg::kFanOut))
                      .Decode(bytes.bytes, piece.elements,
                              DitherOf(piece, root, Leg::kDown),
                              ResultOf(piece)));
  Announce(piece, bytes, out);
  return absl::OkStatus();
}

void BucketExchange::Announce(const Piece& piece, const Payload& bytes,
                              std::vector<OutgoingFrame>& out) {
  MarkWritten(piece);
  if (!Owns(*piece.chunk)) return;
  const int root = options_.schedule->RootSiteOf(piece.chunk->number);
  const int site = options_.schedule->site();
  if (options_.measure && site == std::max(root, 0)) {
    noise_.total_squares += SumOfSquares(ResultOf(piece), piece.elements);
  }
  for (int child : piece.chunk->route.children) {
    Send(piece, Leg::kDown, child, bytes, out);
  }
  for (int member : options_.schedule->site_members()) {
    if (member != options_.schedule->me()) {
      Send(piece, Leg::kFanOut, member, bytes, out);
    }
  }
}

void BucketExchange::MarkWritten(const Piece& piece) {
  piece.chunk->frames[piece.frame].done = true;
  --missing_frames_;
  if (PT_WEAKENED(WrittenWithGaps)) {
    written_elements_ = piece.offset + piece.elements;
    return;
  }
  if (piece.offset != written_elements_) return;
  // Frames behind it may have come before it.
  for (uint32_t c = piece.chunk->number; c < chunks_.size(); ++c) {
    const uint32_t first = c == piece.chunk->number ? piece.frame : 0;
    for (uint32_t f = first; f < chunks_[c].frames.size(); ++f) {
      if (!chunks_[c].frames[f].done) return;
      written_elements_ += frames_.ElementsOf(chunks_[c].elements, f);
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
