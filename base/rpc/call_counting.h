// Has the calls of a gRPC server counted.
#ifndef PACTRAIN_BASE_RPC_CALL_COUNTING_H_
#define PACTRAIN_BASE_RPC_CALL_COUNTING_H_

#include <grpcpp/server_builder.h>

#include <initializer_list>

#include "base/rpc_counts.h"

namespace pactrain::base {

// Of the server to be built; `services`: full names whose methods are shown
// before anybody calls them. `counter` must outlive the server.
// REQUIRES: code of the services is linked.
void CountCalls(std::initializer_list<const char*> services,
                RpcCounter* counter, grpc::ServerBuilder& builder);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_RPC_CALL_COUNTING_H_
