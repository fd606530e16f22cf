#include "agent/rpc/agent_stream.h"

#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "base/rpc/channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

// Whoever was told drops the channel. If the call still had it, the last one
// would go on a thread of gRPC's own, and gRPC aborts.
TEST(AgentStreamTest, IsGoneWhenItSaysThatItIsDone) {
  const auto stub = v1::Coordinator::NewStub(
      base::MakeChannel("127.0.0.1:1", grpc::InsecureChannelCredentials(), -1));
  std::promise<void> let_go;
  std::promise<bool> done;
  std::weak_ptr<AgentStream> watched;
  AgentStream::Callbacks callbacks;
  callbacks.on_done = [&](const absl::Status& why) {
    let_go.get_future().wait();
    done.set_value(watched.expired() && absl::IsUnavailable(why));
  };
  watched = AgentStream::Start(stub.get(), std::move(callbacks));
  let_go.set_value();
  std::future<bool> gone = done.get_future();
  ASSERT_EQ(gone.wait_for(std::chrono::minutes(1)), std::future_status::ready);
  EXPECT_TRUE(gone.get());
}

}  // namespace
}  // namespace pactrain::agent
