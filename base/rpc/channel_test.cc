#include "base/rpc/channel.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

std::chrono::system_clock::time_point Within(int seconds) {
  return std::chrono::system_clock::now() + std::chrono::seconds(seconds);
}

TEST(MakeChannel, ASlowHandshakeIsNotGivenUp) {
  // The system accepts, and nobody says a word.
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener, generic, size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, generic, &size), 0);

  const auto channel =
      MakeChannel(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)),
                  grpc::InsecureChannelCredentials(), -1);
  channel->GetState(/*try_to_connect=*/true);
  ASSERT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_IDLE, Within(20)));
  EXPECT_FALSE(channel->WaitForStateChange(GRPC_CHANNEL_CONNECTING, Within(1)));
  EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_CONNECTING);
  close(listener);
}

}  // namespace
}  // namespace pactrain::base
