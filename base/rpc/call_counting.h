// Has the calls of a gRPC server counted, and what comes in them.
#ifndef PACTRAIN_BASE_RPC_CALL_COUNTING_H_
#define PACTRAIN_BASE_RPC_CALL_COUNTING_H_

#include <grpcpp/server_builder.h>

#include <functional>
#include <initializer_list>

#include "base/rpc_counts.h"
#include "base/tls/certificate_facts.h"

namespace pactrain::base {

// Whose message has come, of a call of any service, before its server has it.
using OnMessage = std::function<void(const CertificateFacts& facts)>;

// Of the server to be built; `services`: full names whose methods are shown
// before anybody calls them. `counter` must outlive the server. `on_message`,
// if given, needs TLS; on gRPC's threads.
// REQUIRES: code of the services is linked.
void CountCalls(std::initializer_list<const char*> services,
                RpcCounter* counter, OnMessage on_message,
                grpc::ServerBuilder& builder);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_RPC_CALL_COUNTING_H_
