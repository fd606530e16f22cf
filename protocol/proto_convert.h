// Between the structs of control.h and their wire form, and the one border at
// which both daemons check what the other sent: every size, enum, name and
// digest length against limits.h, before it sizes or indexes anything.
//
// FromProto: InvalidArgument names the field, what came and what is allowed.
// ToProto never fails; texts over kMaxTextLength are cut.
#ifndef PACTRAIN_PROTOCOL_PROTO_CONVERT_H_
#define PACTRAIN_PROTOCOL_PROTO_CONVERT_H_

#include "absl/status/statusor.h"
#include "pactrain/v1/agent.pb.h"
#include "protocol/control.h"

namespace pactrain::protocol {

v1::AgentMessage ToProto(const AgentMessage& message);
absl::StatusOr<AgentMessage> FromProto(const v1::AgentMessage& proto);

v1::CoordinatorMessage ToProto(const CoordinatorMessage& message);
absl::StatusOr<CoordinatorMessage> FromProto(
    const v1::CoordinatorMessage& proto);

// Parts that the admin service and the journal use, too.
v1::Group ToProto(const GroupId& group);
absl::StatusOr<GroupId> FromProto(const v1::Group& proto);
absl::StatusOr<OnShrink> ReadOnShrink(absl::string_view field,
                                      v1::OnShrink value);
v1::Lineage ToProto(const Lineage& lineage);
// `required`: without an id it is InvalidArgument.
absl::StatusOr<Lineage> ReadLineage(absl::string_view field,
                                    const v1::Lineage& proto, bool required);
v1::HistoryMark ToProto(const HistoryMark& mark);
absl::StatusOr<HistoryMark> FromProto(const v1::HistoryMark& proto);
v1::AuditHead ToProto(const AuditHead& head);
absl::StatusOr<AuditHead> FromProto(const v1::AuditHead& proto);
v1::Onset ToProto(const Onset& onset);
absl::StatusOr<Onset> FromProto(const v1::Onset& proto);
v1::Decision ToProto(const Decision& decision);
absl::StatusOr<Decision> FromProto(const v1::Decision& proto);
v1::KeepByParameter ToProto(const KeepByParameter& keep);
absl::StatusOr<KeepByParameter> FromProto(const v1::KeepByParameter& proto);
v1::DevicePath ToProto(const DevicePath& path);
absl::StatusOr<DevicePath> FromProto(const v1::DevicePath& proto);
v1::Generation ToProto(const Generation& generation);
absl::StatusOr<Generation> FromProto(const v1::Generation& proto);

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_PROTO_CONVERT_H_
