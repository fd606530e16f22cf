// What the coordinator says: control.h <-> agent.proto.
#include "base/hex.h"
#include "base/status_macros.h"
#include "protocol/limits.h"
#include "protocol/proto_check.h"
#include "protocol/proto_convert.h"

namespace pactrain::protocol {
namespace {

constexpr int64_t kMinHeartbeatMs = 10;
constexpr int64_t kMaxHeartbeatMs = 60'000;

struct Writer {
  v1::CoordinatorMessage& out;

  void operator()(const Welcome& m) {
    v1::Welcome& p = *out.mutable_welcome();
    p.set_cluster_id(m.cluster_id);
    p.set_term(m.term);
    p.set_heartbeat_interval_ms(
        static_cast<uint32_t>(absl::ToInt64Milliseconds(m.heartbeat_interval)));
    if (!m.history.empty()) *p.mutable_history() = ToProto(m.history);
    p.set_takes_local_trainers(m.takes_local_trainers);
    p.set_version(WriteText(m.version, kMaxNameLength));
  }
  void operator()(const HistoryMark& m) { *out.mutable_history() = ToProto(m); }
  void operator()(const StartGeneration& m) {
    v1::StartGeneration& p = *out.mutable_start_generation();
    *p.mutable_generation() = ToProto(m.generation);
    p.set_key(m.key.bytes.data(), m.key.bytes.size());
    for (const base::Secret& seat : m.seats) {
      p.add_seats(seat.bytes.data(), seat.bytes.size());
    }
  }
  void operator()(const GroupWaiting& m) {
    v1::GroupWaiting& p = *out.mutable_group_waiting();
    *p.mutable_group() = ToProto(m.group);
    p.set_reason(WriteText(m.reason, kMaxTextLength));
  }
  void operator()(const JoinRefused& m) {
    v1::JoinRefused& p = *out.mutable_join_refused();
    *p.mutable_group() = ToProto(m.group);
    p.set_rank(m.rank);
    p.set_attach_id(WriteDigest(m.attach_id));
    p.set_reason(WriteText(m.reason, kMaxTextLength));
    p.set_replaced(m.replaced);
  }
  void operator()(const Prepare& m) {
    v1::Prepare& p = *out.mutable_prepare();
    *p.mutable_group() = ToProto(m.group);
    p.set_generation(m.generation);
    *p.mutable_decision() = ToProto(m.decision);
  }
  void operator()(const Revoke& m) {
    v1::Revoke& p = *out.mutable_revoke();
    *p.mutable_group() = ToProto(m.group);
    p.set_generation(m.generation);
    p.set_version(m.version);
  }
  void operator()(const EndGeneration& m) {
    v1::EndGeneration& p = *out.mutable_end_generation();
    *p.mutable_group() = ToProto(m.group);
    p.set_generation(m.generation);
    p.set_reason(WriteText(m.reason, kMaxTextLength));
  }
};

absl::StatusOr<CoordinatorMessage> Read(const v1::Welcome& p) {
  if (!base::ParseDigest(p.cluster_id())) {
    return absl::InvalidArgumentError(
        "welcome.cluster_id is not 32 hex digits");
  }
  RETURN_IF_ERROR(CheckRange("welcome.term", p.term(), 1, ~uint64_t{0}));
  RETURN_IF_ERROR(CheckRange("welcome.heartbeat_interval_ms",
                             p.heartbeat_interval_ms(), kMinHeartbeatMs,
                             kMaxHeartbeatMs));
  RETURN_IF_ERROR(CheckLength("welcome.version", p.version(), kMaxNameLength));
  Welcome m = {p.cluster_id(), p.term(),
               absl::Milliseconds(p.heartbeat_interval_ms())};
  m.version = p.version();
  m.takes_local_trainers = p.takes_local_trainers();
  if (p.has_history()) {
    ASSIGN_OR_RETURN(m.history, FromProto(p.history()));
  }
  return m;
}

absl::StatusOr<CoordinatorMessage> Read(const v1::StartGeneration& p) {
  StartGeneration m;
  ASSIGN_OR_RETURN(m.generation, FromProto(p.generation()));
  ASSIGN_OR_RETURN(m.key, ReadSecret("start_generation.key", p.key()));
  RETURN_IF_ERROR(CheckRange("start_generation.seats (their number)",
                             static_cast<uint64_t>(p.seats_size()), 0,
                             kMaxTrainersPerAgent));
  for (const std::string& seat : p.seats()) {
    ASSIGN_OR_RETURN(m.seats.emplace_back(),
                     ReadSecret("start_generation.seats", seat));
  }
  return m;
}

absl::StatusOr<CoordinatorMessage> Read(const v1::GroupWaiting& p) {
  GroupWaiting m;
  ASSIGN_OR_RETURN(m.group, FromProto(p.group()));
  RETURN_IF_ERROR(
      CheckLength("group_waiting.reason", p.reason(), kMaxTextLength));
  m.reason = p.reason();
  return m;
}

absl::StatusOr<CoordinatorMessage> Read(const v1::JoinRefused& p) {
  JoinRefused m;
  ASSIGN_OR_RETURN(m.group, FromProto(p.group()));
  RETURN_IF_ERROR(CheckRange("join_refused.rank", p.rank(), 0, kMaxRanks - 1));
  RETURN_IF_ERROR(
      CheckLength("join_refused.reason", p.reason(), kMaxTextLength));
  m.rank = p.rank();
  ASSIGN_OR_RETURN(m.attach_id,
                   ReadDigest("join_refused.attach_id", p.attach_id(), true));
  m.reason = p.reason();
  m.replaced = p.replaced();
  return m;
}

absl::StatusOr<CoordinatorMessage> Read(const v1::Prepare& p) {
  Prepare m;
  ASSIGN_OR_RETURN(m.group, FromProto(p.group()));
  m.generation = p.generation();
  ASSIGN_OR_RETURN(m.decision, FromProto(p.decision()));
  return m;
}

absl::StatusOr<CoordinatorMessage> Read(const v1::Revoke& p) {
  Revoke m;
  ASSIGN_OR_RETURN(m.group, FromProto(p.group()));
  m.generation = p.generation();
  m.version = p.version();
  return m;
}

absl::StatusOr<CoordinatorMessage> Read(const v1::EndGeneration& p) {
  EndGeneration m;
  ASSIGN_OR_RETURN(m.group, FromProto(p.group()));
  RETURN_IF_ERROR(
      CheckLength("end_generation.reason", p.reason(), kMaxTextLength));
  m.generation = p.generation();
  m.reason = p.reason();
  return m;
}

}  // namespace

v1::CoordinatorMessage ToProto(const CoordinatorMessage& message) {
  v1::CoordinatorMessage proto;
  std::visit(Writer{proto}, message);
  return proto;
}

absl::StatusOr<CoordinatorMessage> FromProto(
    const v1::CoordinatorMessage& proto) {
  switch (proto.kind_case()) {
    case v1::CoordinatorMessage::kWelcome:
      return Read(proto.welcome());
    case v1::CoordinatorMessage::kStartGeneration:
      return Read(proto.start_generation());
    case v1::CoordinatorMessage::kGroupWaiting:
      return Read(proto.group_waiting());
    case v1::CoordinatorMessage::kJoinRefused:
      return Read(proto.join_refused());
    case v1::CoordinatorMessage::kPrepare:
      return Read(proto.prepare());
    case v1::CoordinatorMessage::kRevoke:
      return Read(proto.revoke());
    case v1::CoordinatorMessage::kEndGeneration:
      return Read(proto.end_generation());
    case v1::CoordinatorMessage::kHistory:
      return FromProto(proto.history());
    case v1::CoordinatorMessage::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "coordinator message of no kind known here: the coordinator is newer "
      "than the "
      "agent");
}

}  // namespace pactrain::protocol
