// What agents send each other on the data plane: a 64-byte header, then `bytes`
// of payload. One connection per pair of agents of a cluster, in both
// directions, and where it is worth it more of them, its lanes.
//
// Data frames carry elements of a bucket; control frames carry a vote, an abort
// and so on. A receiver checks the header before anything is added or
// allocated.
#ifndef PACTRAIN_PROTOCOL_FRAME_H_
#define PACTRAIN_PROTOCOL_FRAME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "protocol/types.h"

namespace pactrain::protocol {

inline constexpr size_t kHeaderBytes = 64;
inline constexpr uint32_t kMagic = 0x31544350;  // "PCT1", little-endian.

// What a frame is for. The first five are data, the rest control.
enum class Leg : uint8_t {
  kSiteSum = 1,  // Member -> owner in its site: its local sum, fp32.
  kUp = 2,       // Owner -> owner in the parent site: E(own + children).
  kDown = 3,     // Owner -> owners in child sites: the root's bytes, unchanged.
  kFanOut = 4,   // Owner -> the members of its site: the result.
  kSwap = 5,     // Two sites: owner -> owner, E(site sum).
  kControl = 16,
};

// All integers little-endian on the wire, in this order, no padding.
struct FrameHeader {
  Digest context;           // 16 bytes; see BucketContext. Empty for control.
  uint64_t step = 0;        // 8
  uint16_t attempt = 0;     // 2, from 1
  uint16_t model = 0;       // 2
  uint32_t bucket = 0;      // 4
  uint32_t chunk = 0;       // 4
  uint16_t frame = 0;       // 2, within the chunk
  Leg leg = Leg::kControl;  // 1
  Codec codec = Codec::kFp32;  // 1
  uint16_t source = 0;         // 2, the sender's member number
  // 2; how many GroupControl messages the sender had sent before it, modulo
  // 2^16 (see LaneProof); zero for control.
  uint16_t after = 0;
  uint32_t bytes = 0;        // 4, of payload
  uint32_t elements = 0;     // 4
  uint32_t payload_crc = 0;  // 4; header_crc (4) follows, magic (4) precedes
  bool operator==(const FrameHeader&) const = default;
};

// Writes 64 bytes, header CRC included.
void EncodeHeader(const FrameHeader& header, uint8_t out[kHeaderBytes]);
// DataLoss: wrong magic or CRC. InvalidArgument: a field out of range (bytes
// over kMaxFramePayload, unknown leg or codec, elements over kChunkElements).
absl::StatusOr<FrameHeader> DecodeHeader(const uint8_t in[kHeaderBytes]);

// Everything that must be equal at both ends for two contributions to be added.
// Its digest is in every data frame; the text goes once per connection, so that
// an error can name the field.
struct BucketContext {
  Digest generation;  // Generation::ComputeDigest().
  uint16_t model = 0;
  uint32_t bucket = 0;
  uint64_t elements = 0;  // As sent: kept elements under a mask set.
  Digest bucket_layout;   // Over the bucket's parameters, in order.
  uint64_t decision_version = 0;
  Mode mode = Mode::kFull;
  bool dense = false;  // This attempt sends all elements in fp32.
  Codec codec = Codec::kFp32;
  Digest mask_digest;  // Empty: all elements are sent.
  Op op = Op::kSum;
  std::string dtype;  // Of the trainers' bucket: "float32", "bfloat16".
  bool operator==(const BucketContext&) const = default;
  Digest ComputeDigest() const;
};

// Why an attempt failed, from harmless to final; the worst cause of all members
// decides what happens next.
enum class Cause : uint8_t {
  kNone = 0,
  kConnection = 1,    // } same bytes again
  kStall = 2,         // }
  kChecksum = 3,      // }
  kResultDigest = 4,  // Results differ: fp32 of the same elements.
  kMask = 5,        // Masks differ or an element outside: DENSE, resubmit all.
  kDeadline = 6,    // Refused: a rank did not submit in time.
  kLayout = 7,      // Refused: not applied, the error names both sides.
  kParameters = 8,  // Final: parameters differ between ranks.
  kMemberLost = 9,  // Final: an agent or trainer is gone.
  kStraggler = 10,  // Final: a rank did not submit in time and counts as lost.
};
absl::string_view CauseName(Cause cause);
inline constexpr size_t kCauses = static_cast<size_t>(Cause::kStraggler) + 1;
using AttemptsByCause = std::array<uint64_t, kCauses>;  // That failed.

// The messages of control frames. kKind is what the payload begins with.

// What a member of a generation says at the end of an attempt.
struct CommitVote {
  static constexpr uint8_t kKind = 3;
  Digest generation;
  uint16_t model = 0;
  uint64_t step = 0;
  uint16_t attempt = 0;
  Digest result;           // Over all results of the step.
  Digest parameters;       // Of the trainers' parameters; empty: not this step.
  uint64_t candidate = 0;  // Version of the prepared decision; 0: none.
  bool operator==(const CommitVote&) const = default;
};

struct Abort {
  static constexpr uint8_t kKind = 4;
  Digest generation;
  uint16_t model = 0;
  uint64_t step = 0;
  uint16_t attempt = 0;
  Cause cause = Cause::kNone;
  std::string detail;  // For the trainers' error; names both sides.
  bool voted = false;  // The sender had voted; `vote` is that vote.
  CommitVote vote;
  bool answer = false;  // To an old message; is never answered itself.
  bool operator==(const Abort&) const = default;
};

// The sender committed this attempt: proof for one who missed a vote.
struct Certificate {
  static constexpr uint8_t kKind = 5;
  Digest generation;
  uint16_t model = 0;
  uint64_t step = 0;
  uint16_t attempt = 0;
  Digest result;
  uint64_t next_decision = 0;  // In force after the commit.
  bool operator==(const Certificate&) const = default;
};

// Sent before the first data frame with this context on a connection.
struct ContextNotice {
  static constexpr uint8_t kKind = 6;
  uint16_t model = 0;
  BucketContext context;
  bool operator==(const ContextNotice&) const = default;
};

// The sender runs this generation: from now on it takes data frames of it on
// this connection. A receiver that runs it, too, answers with its own.
struct Ready {
  static constexpr uint8_t kKind = 7;
  Digest generation;
  uint16_t model = 0;
  bool answer = false;  // Never answered itself.
  bool operator==(const Ready&) const = default;
};

// The sender still waits for trainers of its own, or data of the attempt still
// reaches it over a slow link, so whoever waits for its data or its vote waits
// on. Said again while it is so.
struct Late {
  static constexpr uint8_t kKind = 10;
  Digest generation;
  uint16_t model = 0;
  uint64_t step = 0;
  uint16_t attempt = 0;
  std::string missing;  // Whom it waits for; empty: data reaches it.
  bool operator==(const Late&) const = default;
};

// First frame on a connection, both ways. `job` names nothing here: one
// connection serves all groups that two agents share.
struct PeerHello {
  static constexpr uint8_t kKind = 1;
  std::string agent;
  Digest incarnation;
  std::string cluster_id;
  std::string
      expected_agent;  // Whom the sender means to talk to; empty: accepted.
  // Of all hellos of this process, from 1: which of two connections is newer.
  uint64_t number = 0;
  Digest nonce = {};  // Random, another in each hello.
  uint16_t lane = 0;  // 0: the connection of the pair; else one of its lanes.
  bool operator==(const PeerHello&) const = default;
};

// The sender holds this generation's key: the first that it says of a
// generation on a connection.
struct KeyProof {
  static constexpr uint8_t kKind = 8;
  Digest generation;
  // With the key over the generation, both names and what only this connection
  // has (KeyProofs).
  std::array<uint8_t, 32> mac = {};
  bool operator==(const KeyProof&) const = default;
};

// A lane carries data of the pair, and of control nothing but pings and this,
// by which each end shows first that it is the one at the end of the pair's
// connection. Data may not overtake control that was sent before it: who gets
// a frame on a lane waits with it for FrameHeader::after control messages.
struct LaneProof {
  static constexpr uint8_t kKind = 9;
  // With what only the pair's connection has, over both names and what only
  // the lane has (lane_proof.h of the agent).
  std::array<uint8_t, 32> mac = {};
  bool operator==(const LaneProof&) const = default;
};

// Every heartbeat interval on an idle connection; echoed to measure the RTT.
struct Ping {
  static constexpr uint8_t kKind = 2;
  uint64_t id = 0;
  bool echo = false;
  bool operator==(const Ping&) const = default;
};

struct GroupControl {
  GroupId group;  // Names the group of the message in `body`.
  std::variant<CommitVote, Abort, Certificate, ContextNotice, Ready, Late> body;
  bool operator==(const GroupControl&) const = default;
};

// Of which generation its message is.
const Digest& GenerationOf(const GroupControl& control);

using PeerControl =
    std::variant<PeerHello, Ping, KeyProof, LaneProof, GroupControl>;

// The payload of a control frame.
std::string EncodeControl(const PeerControl& control);
// InvalidArgument: truncated, oversized or an unknown kind.
absl::StatusOr<PeerControl> DecodeControl(absl::Span<const uint8_t> payload);

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_FRAME_H_
