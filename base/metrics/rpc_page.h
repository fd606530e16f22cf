// The metrics of a gRPC server, under the names that dashboards expect.
#ifndef PACTRAIN_BASE_METRICS_RPC_PAGE_H_
#define PACTRAIN_BASE_METRICS_RPC_PAGE_H_

#include "base/metrics/metrics_page.h"
#include "base/rpc_counts.h"

namespace pactrain::base {

inline MetricsPage RpcPage(const RpcCounts& calls) {
  MetricsPage page("grpc_server_");
  page.Start("started_total", MetricType::Counter, "Calls that began.",
             {"grpc_type", "grpc_service", "grpc_method"});
  for (const auto& [method, count] : calls) {
    page.Add({method.type, method.service, method.name}, count.started);
  }
  page.Start("handled_total", MetricType::Counter,
             "Calls that ended, by their code; a stream of an agent lasts as "
             "long as the agent does.",
             {"grpc_type", "grpc_service", "grpc_method", "grpc_code"});
  for (const auto& [method, count] : calls) {
    for (size_t code = 0; code < kRpcCodes.size(); ++code) {
      page.Add({method.type, method.service, method.name, kRpcCodes[code]},
               count.handled[code]);
    }
  }
  page.Start("handling_seconds", MetricType::Histogram,
             "How long calls that ended had lasted.",
             {"grpc_type", "grpc_service", "grpc_method"});
  for (const auto& [method, count] : calls) {
    page.Add({method.type, method.service, method.name}, count.seconds);
  }
  return page;
}

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_METRICS_RPC_PAGE_H_
