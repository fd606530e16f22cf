#include "agent/local/packet.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "protocol/limits.h"
#include "protocol/types.h"

namespace pactrain::agent {
namespace {

template <size_t kBytes>
absl::Status CheckText(absl::string_view field, const char (&text)[kBytes]) {
  if (std::memchr(text, 0, kBytes) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has no NUL within its ", kBytes, " bytes"));
}

absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t low,
                        uint64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", allowed are ", low, " to ", high));
}

absl::Status Check(const wire::Hello& hello) {
  if (hello.version != wire::kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("the library speaks version ", hello.version,
                     " of the local protocol, this agent ", wire::kVersion,
                     "; install the same release of both"));
  }
  RETURN_IF_ERROR(CheckText("Hello.job", hello.job));
  RETURN_IF_ERROR(CheckText("Hello.launch", hello.launch));
  RETURN_IF_ERROR(CheckText("Hello.site", hello.site));
  RETURN_IF_ERROR(CheckText("Hello.device", hello.device));
  RETURN_IF_ERROR(CheckText("Hello.gpu", hello.gpu));
  return CheckText("Hello.model_summary", hello.model_summary);
}

absl::Status Check(const wire::Submit& submit) {
  using protocol::Mode;
  using protocol::Op;
  RETURN_IF_ERROR(
      CheckRange("Submit.bucket", submit.bucket, 0, protocol::kMaxBuckets - 1));
  RETURN_IF_ERROR(CheckRange("Submit.elements", submit.elements, 0,
                             protocol::kMaxElements));
  RETURN_IF_ERROR(
      CheckRange("Submit.filled", submit.filled, 0, submit.elements));
  RETURN_IF_ERROR(CheckRange("Submit.mode", submit.mode,
                             static_cast<uint64_t>(Mode::kFull),
                             static_cast<uint64_t>(Mode::kTernary)));
  RETURN_IF_ERROR(CheckRange("Submit.op", submit.op,
                             static_cast<uint64_t>(Op::kSum),
                             static_cast<uint64_t>(Op::kXor)));
  RETURN_IF_ERROR(CheckRange("Submit.dtype", submit.dtype, 1, 2));
  RETURN_IF_ERROR(CheckRange("Submit.dense", submit.dense, 0, 1));
  RETURN_IF_ERROR(CheckRange("Submit.last", submit.last, 0, 1));
  RETURN_IF_ERROR(CheckRange("Submit.violation", submit.violation, 0, 1));
  RETURN_IF_ERROR(CheckRange("Submit.reduced", submit.reduced, 0, 1));
  return CheckText("Submit.violation_text", submit.violation_text);
}

absl::Status Check(const wire::Vote& vote) {
  RETURN_IF_ERROR(CheckText("Vote.moved", vote.moved));
  RETURN_IF_ERROR(protocol::CheckMoved("Vote.moved", vote.moved));
  return CheckRange("Vote.inside_decision", vote.inside_decision, 0, 1);
}

absl::Status Check(const wire::Keep& keep) {
  RETURN_IF_ERROR(
      CheckRange("Keep.count", keep.count, 0, wire::kKeepParameters));
  for (size_t i = 0; i < keep.count; ++i) {
    RETURN_IF_ERROR(CheckText("Keep.name", keep.parameters[i].name));
  }
  return absl::OkStatus();
}

absl::Status Check(const wire::DevicePath& path) {
  RETURN_IF_ERROR(CheckRange("DevicePath.path", path.path, 0, 3));
  RETURN_IF_ERROR(CheckText("DevicePath.reason", path.reason));
  return protocol::CheckMoved("DevicePath.reason", path.reason);
}

absl::Status Check(const wire::Detach&) { return absl::OkStatus(); }
absl::Status Check(const wire::Ask&) { return absl::OkStatus(); }
absl::Status Check(const wire::CollectiveId&) { return absl::OkStatus(); }
absl::Status Check(const wire::Opened&) { return absl::OkStatus(); }

absl::Status Check(const wire::Staged& staged) {
  RETURN_IF_ERROR(
      CheckRange("Staged.bucket", staged.bucket, 0, protocol::kMaxBuckets - 1));
  RETURN_IF_ERROR(CheckRange("Staged.elements", staged.elements, 0,
                             protocol::kMaxElements));
  return CheckRange("Staged.dtype", staged.dtype, 1, 2);
}

absl::Status Check(const wire::BucketWord& word) {
  return CheckRange("Reduced.bucket", word.bucket, 0,
                    protocol::kMaxBuckets - 1);
}

absl::Status Check(const wire::CollectiveFailed& failed) {
  return CheckText("CollectiveFailed.text", failed.text);
}

template <typename Message>
absl::StatusOr<Message> Read(absl::Span<const uint8_t> packet) {
  Message message;
  if (packet.size() != sizeof(message)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet has ", packet.size(), " bytes, its kind has ",
                     sizeof(message)));
  }
  std::memcpy(&message, packet.data(), sizeof(message));
  RETURN_IF_ERROR(Check(message));
  return message;
}

static_assert(wire::kKeepParameters == protocol::kMaxKeepParameters);
static_assert(wire::kNameBytes == protocol::kMaxNameLength + 1);
static_assert(sizeof(wire::Keep) <= wire::kMaxMessage);

absl::StatusOr<TrainerPacket> ReadKeep(absl::Span<const uint8_t> packet) {
  ASSIGN_OR_RETURN(const wire::Keep message, Read<wire::Keep>(packet));
  protocol::KeepByParameter keep;
  keep.mask_digest = {message.mask_digest.hi, message.mask_digest.lo};
  for (size_t i = 0; i < message.count; ++i) {
    const wire::Keep::Parameter& parameter = message.parameters[i];
    keep.parameters.push_back(
        {parameter.name, parameter.kept, parameter.elements});
  }
  keep.others = message.others;
  keep.others_kept = message.others_kept;
  keep.others_elements = message.others_elements;
  RETURN_IF_ERROR(protocol::CheckKeep("Keep", keep));
  return keep;
}

}  // namespace

absl::StatusOr<TrainerPacket> ParseTrainerPacket(
    absl::Span<const uint8_t> packet) {
  wire::Header header;
  if (packet.size() < sizeof(header) || packet.size() > wire::kMaxMessage) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet has ", packet.size(), " bytes, allowed are ",
                     sizeof(header), " to ", wire::kMaxMessage));
  }
  std::memcpy(&header, packet.data(), sizeof(header));
  if (header.bytes != packet.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet has ", packet.size(), " bytes, its header says ",
                     header.bytes));
  }
  switch (header.kind) {
    case wire::Kind::kHello:
      return Read<wire::Hello>(packet);
    case wire::Kind::kSubmit:
      return Read<wire::Submit>(packet);
    case wire::Kind::kVote:
      return Read<wire::Vote>(packet);
    case wire::Kind::kKeep:
      return ReadKeep(packet);
    case wire::Kind::kDevicePath:
      return Read<wire::DevicePath>(packet);
    case wire::Kind::kDetach:
      return Read<wire::Detach>(packet);
    case wire::Kind::kAsk:
      return Read<wire::Ask>(packet);
    case wire::Kind::kCollectiveId:
      return Read<wire::CollectiveId>(packet);
    case wire::Kind::kOpened:
      return Read<wire::Opened>(packet);
    case wire::Kind::kStaged:
      return Read<wire::Staged>(packet);
    case wire::Kind::kReduced:
      return Read<wire::BucketWord>(packet);
    case wire::Kind::kCollectiveFailed:
      return Read<wire::CollectiveFailed>(packet);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("a packet has kind ", static_cast<uint32_t>(header.kind),
                       ", which no trainer sends"));
  }
}

}  // namespace pactrain::agent
