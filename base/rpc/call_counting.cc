#include "base/rpc/call_counting.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/rpc/credentials.h"

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
  Call(grpc_ex::ServerRpcInfo* info, RpcCounter* counter,
       const OnMessage& on_message)
      : info_(info),
        method_(MethodOf(*info)),
        counter_(counter),
        on_message_(on_message) {
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
    // There is none where its client is done.
    if (on_message_ != nullptr &&
        methods->QueryInterceptionHookPoint(
            grpc_ex::InterceptionHookPoints::POST_RECV_MESSAGE) &&
        methods->GetRecvMessage() != nullptr) {
      if (!facts_) facts_ = PeerFacts(*info_->server_context()->auth_context());
      on_message_(*facts_);
    }
    methods->Proceed();
  }

 private:
  grpc_ex::ServerRpcInfo* const info_;
  const RpcMethod method_;
  RpcCounter* const counter_;
  const OnMessage& on_message_;
  std::optional<CertificateFacts> facts_;  // Once there is a message.
  const absl::Duration begin_ = MonotonicNow();
  size_t code_ = grpc::StatusCode::CANCELLED;
};

class Factory : public grpc_ex::ServerInterceptorFactoryInterface {
 public:
  Factory(RpcCounter* counter, OnMessage on_message)
      : counter_(counter), on_message_(std::move(on_message)) {}
  grpc_ex::Interceptor* CreateServerInterceptor(
      grpc_ex::ServerRpcInfo* info) override {
    return new Call(info, counter_, on_message_);
  }

 private:
  RpcCounter* const counter_;
  const OnMessage on_message_;
};

}  // namespace

void CountCalls(std::initializer_list<const char*> services,
                RpcCounter* counter, OnMessage on_message,
                grpc::ServerBuilder& builder) {
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
  factories.push_back(
      std::make_unique<Factory>(counter, std::move(on_message)));
  builder.experimental().SetInterceptorCreators(std::move(factories));
}

}  // namespace pactrain::base
