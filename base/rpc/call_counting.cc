#include "base/rpc/call_counting.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"

namespace pactrain::base {
namespace {

namespace grpc_ex = grpc::experimental;

// By ServerRpcInfo::Type.
constexpr const char* kTypes[] = {"unary", "client_stream", "server_stream",
                                  "bidi_stream"};

RpcMethod MethodOf(const grpc_ex::ServerRpcInfo& info) {
  absl::string_view path = info.method();  // "/package.Service/Method"
  const size_t slash = path.rfind('/');
  return {kTypes[static_cast<size_t>(info.type())],
          std::string(path.substr(1, slash - 1)),
          std::string(path.substr(slash + 1))};
}

class Call : public grpc_ex::Interceptor {
 public:
  Call(RpcMethod method, RpcCounter* counter)
      : method_(std::move(method)), counter_(counter) {
    counter_->OnStarted(method_);
  }
  // gRPC is done with the call. Who went away without a status has cancelled.
  ~Call() override {
    counter_->OnEnded(method_, code_,
                      absl::ToDoubleSeconds(MonotonicNow() - begin_));
  }
  void Intercept(grpc_ex::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc_ex::InterceptionHookPoints::PRE_SEND_STATUS)) {
      code_ = static_cast<size_t>(methods->GetSendStatus().error_code());
    }
    methods->Proceed();
  }

 private:
  const RpcMethod method_;
  RpcCounter* const counter_;
  const absl::Duration begin_ = MonotonicNow();
  size_t code_ = grpc::StatusCode::CANCELLED;
};

class Factory : public grpc_ex::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(RpcCounter* counter) : counter_(counter) {}
  grpc_ex::Interceptor* CreateServerInterceptor(
      grpc_ex::ServerRpcInfo* info) override {
    return new Call(MethodOf(*info), counter_);
  }

 private:
  RpcCounter* const counter_;
};

}  // namespace

void CountCalls(std::initializer_list<const char*> services,
                RpcCounter* counter, grpc::ServerBuilder& builder) {
  for (const char* name : services) {
    const google::protobuf::ServiceDescriptor* service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
            name);
    PT_CHECK(service != nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      const auto& method = *service->method(i);
      const int type =
          method.client_streaming() + 2 * method.server_streaming();
      counter->Declare({kTypes[type], name, method.name()});
    }
  }
  std::vector<std::unique_ptr<grpc_ex::ServerInterceptorFactoryInterface>>
      factories;
  factories.push_back(std::make_unique<Factory>(counter));
  builder.experimental().SetInterceptorCreators(std::move(factories));
}

}  // namespace pactrain::base
