#include "base/rpc/channel.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/rpc/test_listener.h"
#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

std::chrono::system_clock::time_point Within(int seconds) {
  return std::chrono::system_clock::now() + std::chrono::seconds(seconds);
}

TEST(MakeChannel, ASlowHandshakeIsNotGivenUp) {
  // The system accepts, and nobody says a word.
  const TestListener listener;
  const auto channel = MakeChannel(absl::StrCat("127.0.0.1:", listener.port()),
                                   grpc::InsecureChannelCredentials(), -1);
  channel->GetState(/*try_to_connect=*/true);
  ASSERT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_IDLE, Within(20)));
  EXPECT_FALSE(channel->WaitForStateChange(GRPC_CHANNEL_CONNECTING, Within(1)));
  EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_CONNECTING);
}

}  // namespace
}  // namespace pactrain::base
