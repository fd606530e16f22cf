// What pactrain-admin says of the audit log.
#ifndef PACTRAIN_COORDINATOR_ADMIN_AUDIT_H_
#define PACTRAIN_COORDINATOR_ADMIN_AUDIT_H_

#include <string>

#include "pactrain/v1/admin.pb.h"
#include "protocol/audit.h"

namespace pactrain::coordinator {

// One line, without control characters: texts of strangers are in it.
std::string AuditText(const v1::AuditLine& line);

protocol::AuditPage FromProto(const v1::ReadAuditResponse& page);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_AUDIT_H_
