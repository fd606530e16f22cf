// The payload of control frames: frame.h's messages <-> bytes.
#include <array>
#include <type_traits>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "protocol/frame.h"
#include "protocol/frame_bytes.h"
#include "protocol/limits.h"

namespace pactrain::protocol {
namespace {

using internal::Reader;
using internal::Writer;

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
  kLaneProof = 9,
  kLate = 10,
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
  abort.cause = r.Enum("cause", Cause::kNone, Cause::kStraggler);
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

void Write(Writer& w, const Late& late) {
  WriteStep(w, late.generation, late.model, late.step, late.attempt);
  w.Text(late.missing, kMaxTextLength);
}

Late ReadLate(Reader& r) {
  Late late;
  ReadStep(r, late);
  late.missing = r.Text("missing", kMaxTextLength);
  return late;
}

void Write(Writer& w, const PeerHello& hello) {
  w.Text(hello.agent, kMaxNameLength);
  w.Write(hello.incarnation);
  w.Text(hello.cluster_id, kIdTextLength);
  w.Text(hello.expected_agent, kMaxNameLength);
  w.Int(hello.number);
  w.Write(hello.nonce);
  w.Int(hello.lane);
}

PeerHello ReadHello(Reader& r) {
  PeerHello hello;
  hello.agent = r.Text("agent", kMaxNameLength);
  hello.incarnation = r.ReadDigest("incarnation");
  hello.cluster_id = r.Text("cluster_id", kIdTextLength);
  hello.expected_agent = r.Text("expected_agent", kMaxNameLength);
  hello.number = r.Int<uint64_t>("number");
  hello.nonce = r.ReadDigest("nonce");
  hello.lane = r.Int<uint16_t>("lane");
  return hello;
}

using Mac = std::array<uint8_t, 32>;

void WriteMac(Writer& w, const Mac& mac) {
  for (const uint8_t byte : mac) w.Int(byte);
}

Mac ReadMac(Reader& r) {
  Mac mac;
  for (uint8_t& byte : mac) byte = r.Int<uint8_t>("mac");
  return mac;
}

void Write(Writer& w, const KeyProof& proof) {
  w.Write(proof.generation);
  WriteMac(w, proof.mac);
}

KeyProof ReadProof(Reader& r) {
  KeyProof proof;
  proof.generation = r.ReadDigest("generation");
  proof.mac = ReadMac(r);
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
  if constexpr (std::is_same_v<T, Late>) return ControlKind::kLate;
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
    case ControlKind::kLate:
      control.body = ReadLate(r);
      break;
    default:
      control.body = ReadReady(r);
  }
  return control;
}

}  // namespace

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
  } else if (const auto* lane = std::get_if<LaneProof>(&control)) {
    w.Int(static_cast<uint8_t>(ControlKind::kLaneProof));
    WriteMac(w, lane->mac);
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
  const auto kind = r.Enum("kind", ControlKind::kPeerHello, ControlKind::kLate);
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
  } else if (kind == ControlKind::kLaneProof) {
    control = LaneProof{ReadMac(r)};
  } else {
    control = ReadGroupControl(r, kind);
  }
  RETURN_IF_ERROR(r.Finish());
  return control;
}

}  // namespace pactrain::protocol
