// The payload of control frames: frame.h's messages <-> bytes.
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

constexpr size_t kIdTextLength = 255;  // Addresses and the like.

// Of what a Writer writes or a Reader reads.
template <typename Io, typename T>
using Of = std::conditional_t<std::is_same_v<Io, Writer>, const T, T>;

// Fields() of each message: in the order in which they are written and read.
template <typename Io>
void Fields(Io& io, Of<Io, GroupId>& group) {
  io.Field("job", group.job, kMaxNameLength);
  io.Field("model", group.model);
}

template <typename Io, typename T>
void StepFields(Io& io, T& message) {
  io.Field("generation", message.generation);
  io.Field("model", message.model);
  io.Field("step", message.step);
  io.Field("attempt", message.attempt);
}

template <typename Io>
void Fields(Io& io, Of<Io, CommitVote>& vote) {
  StepFields(io, vote);
  io.Field("result", vote.result);
  io.Field("parameters", vote.parameters);
  io.Field("candidate", vote.candidate);
}

template <typename Io>
void Fields(Io& io, Of<Io, Abort>& abort) {
  StepFields(io, abort);
  io.Field("cause", abort.cause, Cause::kNone, Cause::kStraggler);
  io.Field("detail", abort.detail, kMaxTextLength);
  io.Field("voted", abort.voted);
  Fields(io, abort.vote);
  io.Field("answer", abort.answer);
}

template <typename Io>
void Fields(Io& io, Of<Io, Certificate>& certificate) {
  StepFields(io, certificate);
  io.Field("result", certificate.result);
  io.Field("next_decision", certificate.next_decision);
}

template <typename Io>
void Fields(Io& io, Of<Io, ContextNotice>& notice) {
  auto& c = notice.context;
  io.Field("model", notice.model);
  io.Field("generation", c.generation);
  io.Field("model", c.model);
  io.Field("bucket", c.bucket);
  io.Field("elements", c.elements);
  io.Field("bucket_layout", c.bucket_layout);
  io.Field("decision_version", c.decision_version);
  io.Field("mode", c.mode, Mode::kFull, Mode::kTernary);
  io.Field("dense", c.dense);
  io.Field("codec", c.codec, Codec::kFp32, kLastCodec);
  io.Field("mask_digest", c.mask_digest);
  io.Field("op", c.op, Op::kSum, Op::kXor);
  io.Field("dtype", c.dtype, kMaxNameLength);
}

template <typename Io>
void Fields(Io& io, Of<Io, Ready>& ready) {
  io.Field("generation", ready.generation);
  io.Field("model", ready.model);
  io.Field("answer", ready.answer);
}

template <typename Io>
void Fields(Io& io, Of<Io, Late>& late) {
  StepFields(io, late);
  io.Field("missing", late.missing, kMaxTextLength);
}

template <typename Io>
void Fields(Io& io, Of<Io, PeerHello>& hello) {
  io.Field("agent", hello.agent, kMaxNameLength);
  io.Field("incarnation", hello.incarnation);
  io.Field("cluster_id", hello.cluster_id, kIdTextLength);
  io.Field("expected_agent", hello.expected_agent, kMaxNameLength);
  io.Field("number", hello.number);
  io.Field("nonce", hello.nonce);
  io.Field("lane", hello.lane);
}

template <typename Io>
void Fields(Io& io, Of<Io, Ping>& ping) {
  io.Field("id", ping.id);
  io.Field("echo", ping.echo);
}

template <typename Io>
void Fields(Io& io, Of<Io, KeyProof>& proof) {
  io.Field("generation", proof.generation);
  for (auto& byte : proof.mac) io.Field("mac", byte);
}

template <typename Io>
void Fields(Io& io, Of<Io, LaneProof>& proof) {
  for (auto& byte : proof.mac) io.Field("mac", byte);
}

template <typename T>
void Write(Writer& w, const T& message) {
  w.Int(T::kKind);
  Fields(w, message);
}

void Write(Writer& w, const GroupControl& control) {
  std::visit(
      [&]<typename T>(const T& body) {
        w.Int(T::kKind);
        Fields(w, control.group);
        Fields(w, body);
      },
      control.body);
}

// False: none of these is of that kind.
template <typename... Ts, typename Message>
bool ReadOneOf(Reader& r, uint8_t kind, Message& message) {
  const auto read = [&]<typename T>(T& alternative) {
    Fields(r, alternative);
    return true;
  };
  return ((kind == Ts::kKind && read(message.template emplace<Ts>())) || ...);
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
  std::visit([&](const auto& message) { Write(w, message); }, control);
  return w.Take();
}

absl::StatusOr<PeerControl> DecodeControl(absl::Span<const uint8_t> payload) {
  if (payload.size() > kMaxControlMessage) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "control: %d bytes; at most %d", payload.size(), kMaxControlMessage));
  }
  Reader r(payload);
  const auto kind = r.Enum<uint8_t>("kind", PeerHello::kKind, Late::kKind);
  PeerControl control;
  if (!ReadOneOf<PeerHello, Ping, KeyProof, LaneProof>(r, kind, control)) {
    auto& group = control.emplace<GroupControl>();
    Fields(r, group.group);
    ReadOneOf<CommitVote, Abort, Certificate, ContextNotice, Ready, Late>(
        r, kind, group.body);
  }
  RETURN_IF_ERROR(r.Finish());
  return control;
}

}  // namespace pactrain::protocol
