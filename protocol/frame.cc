#include "protocol/frame.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "protocol/limits.h"

namespace pactrain::protocol {
namespace {

// Layout: magic, then FrameHeader's fields in order, the header's CRC last.
constexpr size_t kCrcOffset = kHeaderBytes - 4;

// Which alternative a control payload holds. Values are the wire's.
enum class ControlKind : uint8_t {
  kPeerHello = 1,
  kPing = 2,
  kCommitVote = 3,
  kAbort = 4,
  kCertificate = 5,
  kContextNotice = 6,
  kReady = 7,
  kKeyProof = 8,
};

// Appends little-endian integers and length-prefixed text.
class Writer {
 public:
  template <typename T>
  void Int(T value) {
    static_assert(std::is_unsigned_v<T>);
    for (size_t i = 0; i < sizeof(T); ++i) {
      out_.push_back(
          static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
    }
  }
  void Write(const Digest& digest) {
    Int(digest.hi);
    Int(digest.lo);
  }
  // Cut to what a reader accepts: a long reason must not cost the message.
  void Text(absl::string_view text, size_t limit) {
    text = text.substr(0, limit);
    Int(static_cast<uint16_t>(text.size()));
    out_.append(text.data(), text.size());
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// Reads what Writer wrote; after the first bad field everything reads as zero
// and status() says which field it was.
class Reader {
 public:
  explicit Reader(absl::Span<const uint8_t> in) : in_(in) {}

  template <typename T>
  T Int(absl::string_view what) {
    static_assert(std::is_unsigned_v<T>);
    if (!Has(sizeof(T), what)) return 0;
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value |= uint64_t{in_[i]} << (8 * i);
    in_.remove_prefix(sizeof(T));
    return static_cast<T>(value);
  }
  template <typename E>
  E Enum(absl::string_view what, E low, E high) {
    const auto value = Int<uint8_t>(what);
    if (status_.ok() && (value < static_cast<uint8_t>(low) ||
                         value > static_cast<uint8_t>(high))) {
      Fail(absl::StrFormat("control: %s is %d; want %d..%d", what, value,
                           static_cast<int>(low), static_cast<int>(high)));
    }
    return static_cast<E>(value);
  }
  bool Bool(absl::string_view what) {
    return Enum<Flag>(what, Flag::kFalse, Flag::kTrue) == Flag::kTrue;
  }
  Digest ReadDigest(absl::string_view what) {
    const auto hi = Int<uint64_t>(what);
    return {hi, Int<uint64_t>(what)};
  }
  std::string Text(absl::string_view what, size_t limit) {
    const size_t size = Int<uint16_t>(what);
    if (size > limit) {
      Fail(absl::StrFormat("control: %s has %d bytes; at most %d", what, size,
                           limit));
    }
    if (!Has(size, what)) return "";
    std::string text(reinterpret_cast<const char*>(in_.data()), size);
    in_.remove_prefix(size);
    return text;
  }
  absl::Status Finish() {
    if (status_.ok() && !in_.empty()) {
      Fail(absl::StrFormat("control: %d bytes left over", in_.size()));
    }
    return status_;
  }

 private:
  enum class Flag : uint8_t { kFalse = 0, kTrue = 1 };

  bool Has(size_t bytes, absl::string_view what) {
    if (status_.ok() && in_.size() < bytes) {
      Fail(absl::StrFormat("control: cut short in %s", what));
    }
    return status_.ok();
  }
  void Fail(const std::string& message) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(message);
  }

  absl::Span<const uint8_t> in_;
  absl::Status status_;
};

constexpr size_t kIdTextLength = 255;  // Addresses and the like.

void WriteStep(Writer& w, const Digest& generation, uint16_t model,
               uint64_t step, uint16_t attempt) {
  w.Write(generation);
  w.Int(model);
  w.Int(step);
  w.Int(attempt);
}

template <typename T>
void ReadStep(Reader& r, T& out) {
  out.generation = r.ReadDigest("generation");
  out.model = r.Int<uint16_t>("model");
  out.step = r.Int<uint64_t>("step");
  out.attempt = r.Int<uint16_t>("attempt");
}

void Write(Writer& w, const CommitVote& vote) {
  WriteStep(w, vote.generation, vote.model, vote.step, vote.attempt);
  w.Write(vote.result);
  w.Write(vote.parameters);
  w.Int(vote.candidate);
}

CommitVote ReadVote(Reader& r) {
  CommitVote vote;
  ReadStep(r, vote);
  vote.result = r.ReadDigest("result");
  vote.parameters = r.ReadDigest("parameters");
  vote.candidate = r.Int<uint64_t>("candidate");
  return vote;
}

void Write(Writer& w, const Abort& abort) {
  WriteStep(w, abort.generation, abort.model, abort.step, abort.attempt);
  w.Int(static_cast<uint8_t>(abort.cause));
  w.Text(abort.detail, kMaxTextLength);
  w.Int(static_cast<uint8_t>(abort.voted));
  Write(w, abort.vote);
  w.Int(static_cast<uint8_t>(abort.answer));
}

Abort ReadAbort(Reader& r) {
  Abort abort;
  ReadStep(r, abort);
  abort.cause = r.Enum("cause", Cause::kNone, Cause::kMemberLost);
  abort.detail = r.Text("detail", kMaxTextLength);
  abort.voted = r.Bool("voted");
  abort.vote = ReadVote(r);
  abort.answer = r.Bool("answer");
  return abort;
}

void Write(Writer& w, const Certificate& certificate) {
  WriteStep(w, certificate.generation, certificate.model, certificate.step,
            certificate.attempt);
  w.Write(certificate.result);
  w.Int(certificate.next_decision);
}

Certificate ReadCertificate(Reader& r) {
  Certificate certificate;
  ReadStep(r, certificate);
  certificate.result = r.ReadDigest("result");
  certificate.next_decision = r.Int<uint64_t>("next_decision");
  return certificate;
}

void Write(Writer& w, const ContextNotice& notice) {
  const BucketContext& c = notice.context;
  w.Int(notice.model);
  w.Write(c.generation);
  w.Int(c.model);
  w.Int(c.bucket);
  w.Int(c.elements);
  w.Write(c.bucket_layout);
  w.Int(c.decision_version);
  w.Int(static_cast<uint8_t>(c.mode));
  w.Int(static_cast<uint8_t>(c.dense));
  w.Int(static_cast<uint8_t>(c.codec));
  w.Write(c.mask_digest);
  w.Int(static_cast<uint8_t>(c.op));
  w.Text(c.dtype, kMaxNameLength);
}

ContextNotice ReadNotice(Reader& r) {
  ContextNotice notice;
  BucketContext& c = notice.context;
  notice.model = r.Int<uint16_t>("model");
  c.generation = r.ReadDigest("generation");
  c.model = r.Int<uint16_t>("model");
  c.bucket = r.Int<uint32_t>("bucket");
  c.elements = r.Int<uint64_t>("elements");
  c.bucket_layout = r.ReadDigest("bucket_layout");
  c.decision_version = r.Int<uint64_t>("decision_version");
  c.mode = r.Enum("mode", Mode::kFull, Mode::kTernary);
  c.dense = r.Bool("dense");
  c.codec = r.Enum("codec", Codec::kFp32, kLastCodec);
  c.mask_digest = r.ReadDigest("mask_digest");
  c.op = r.Enum("op", Op::kSum, Op::kXor);
  c.dtype = r.Text("dtype", kMaxNameLength);
  return notice;
}

void Write(Writer& w, const Ready& ready) {
  w.Write(ready.generation);
  w.Int(ready.model);
  w.Int(static_cast<uint8_t>(ready.answer));
}

Ready ReadReady(Reader& r) {
  Ready ready;
  ready.generation = r.ReadDigest("generation");
  ready.model = r.Int<uint16_t>("model");
  ready.answer = r.Bool("answer");
  return ready;
}

void Write(Writer& w, const PeerHello& hello) {
  w.Text(hello.agent, kMaxNameLength);
  w.Write(hello.incarnation);
  w.Text(hello.cluster_id, kIdTextLength);
  w.Text(hello.expected_agent, kMaxNameLength);
  w.Int(hello.number);
  w.Write(hello.nonce);
}

PeerHello ReadHello(Reader& r) {
  PeerHello hello;
  hello.agent = r.Text("agent", kMaxNameLength);
  hello.incarnation = r.ReadDigest("incarnation");
  hello.cluster_id = r.Text("cluster_id", kIdTextLength);
  hello.expected_agent = r.Text("expected_agent", kMaxNameLength);
  hello.number = r.Int<uint64_t>("number");
  hello.nonce = r.ReadDigest("nonce");
  return hello;
}

void Write(Writer& w, const KeyProof& proof) {
  w.Write(proof.generation);
  for (const uint8_t byte : proof.mac) w.Int(byte);
}

KeyProof ReadProof(Reader& r) {
  KeyProof proof;
  proof.generation = r.ReadDigest("generation");
  for (uint8_t& byte : proof.mac) byte = r.Int<uint8_t>("mac");
  return proof;
}

template <typename T>
constexpr ControlKind KindOf() {
  if constexpr (std::is_same_v<T, CommitVote>) return ControlKind::kCommitVote;
  if constexpr (std::is_same_v<T, Abort>) return ControlKind::kAbort;
  if constexpr (std::is_same_v<T, Certificate>)
    return ControlKind::kCertificate;
  if constexpr (std::is_same_v<T, ContextNotice>) {
    return ControlKind::kContextNotice;
  }
  if constexpr (std::is_same_v<T, Ready>) return ControlKind::kReady;
}

GroupControl ReadGroupControl(Reader& r, ControlKind kind) {
  GroupControl control;
  control.group.job = r.Text("job", kMaxNameLength);
  control.group.model = r.Int<uint16_t>("model");
  switch (kind) {
    case ControlKind::kCommitVote:
      control.body = ReadVote(r);
      break;
    case ControlKind::kAbort:
      control.body = ReadAbort(r);
      break;
    case ControlKind::kCertificate:
      control.body = ReadCertificate(r);
      break;
    case ControlKind::kContextNotice:
      control.body = ReadNotice(r);
      break;
    default:
      control.body = ReadReady(r);
  }
  return control;
}

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
  w.Int(header.flags);
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
  h.flags = r.Int<uint16_t>("flags");
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
  if (h.flags != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame: flags are %d; want 0", h.flags));
  }
  h.leg = static_cast<Leg>(leg);
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
  }
  return "unknown cause";
}

const Digest& GenerationOf(const GroupControl& control) {
  return std::visit(
      [](const auto& body) -> const Digest& {
        if constexpr (requires { body.context; }) {
          return body.context.generation;
        } else {
          return body.generation;
        }
      },
      control.body);
}

std::string EncodeControl(const PeerControl& control) {
  Writer w;
  if (const auto* hello = std::get_if<PeerHello>(&control)) {
    w.Int(static_cast<uint8_t>(ControlKind::kPeerHello));
    Write(w, *hello);
  } else if (const auto* ping = std::get_if<Ping>(&control)) {
    w.Int(static_cast<uint8_t>(ControlKind::kPing));
    w.Int(ping->id);
    w.Int(static_cast<uint8_t>(ping->echo));
  } else if (const auto* proof = std::get_if<KeyProof>(&control)) {
    w.Int(static_cast<uint8_t>(ControlKind::kKeyProof));
    Write(w, *proof);
  } else {
    const auto& group = std::get<GroupControl>(control);
    std::visit(
        [&](const auto& body) {
          w.Int(static_cast<uint8_t>(KindOf<std::decay_t<decltype(body)>>()));
          w.Text(group.group.job, kMaxNameLength);
          w.Int(group.group.model);
          Write(w, body);
        },
        group.body);
  }
  return w.Take();
}

absl::StatusOr<PeerControl> DecodeControl(absl::Span<const uint8_t> payload) {
  if (payload.size() > kMaxControlMessage) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "control: %d bytes; at most %d", payload.size(), kMaxControlMessage));
  }
  Reader r(payload);
  const auto kind =
      r.Enum("kind", ControlKind::kPeerHello, ControlKind::kKeyProof);
  PeerControl control;
  if (kind == ControlKind::kPeerHello) {
    control = ReadHello(r);
  } else if (kind == ControlKind::kPing) {
    Ping ping;
    ping.id = r.Int<uint64_t>("id");
    ping.echo = r.Bool("echo");
    control = ping;
  } else if (kind == ControlKind::kKeyProof) {
    control = ReadProof(r);
  } else {
    control = ReadGroupControl(r, kind);
  }
  RETURN_IF_ERROR(r.Finish());
  return control;
}

}  // namespace pactrain::protocol
