#include "agent/exchange/tcp/tcp_tuning.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

TEST(InFlightBytesTest, IsTwiceWhatTheLinkHoldsAndATurn) {
  EXPECT_EQ(InFlightBytes(0, absl::ZeroDuration()), kLeastInFlightBytes);
  EXPECT_EQ(InFlightBytes(2.5e6, absl::Microseconds(200)), kLeastInFlightBytes);
  EXPECT_EQ(InFlightBytes(100e6, absl::Milliseconds(1)), 2'700'000u);
  EXPECT_EQ(InFlightBytes(100e6, absl::Milliseconds(4)), 3'300'000u);
}

class TuneTcpTest : public ::testing::Test {
 protected:
  TuneTcpTest() {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* name = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(bind(listener_, name, size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, name, &size), 0);
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(socket_, name, size), 0);
  }
  ~TuneTcpTest() override {
    close(socket_);
    close(listener_);
  }

  int Option(int level, int option) const {
    int value = -1;
    socklen_t size = sizeof value;
    EXPECT_EQ(getsockopt(socket_, level, option, &value, &size), 0);
    return value;
  }
  int SendBuffer() const { return Option(SOL_SOCKET, SO_SNDBUF); }

  int listener_ = -1;
  int socket_ = -1;
};

TEST_F(TuneTcpTest, ANearConnectionHoldsWhatItsRateAsksFor) {
  TcpTuning tuning(socket_, absl::Seconds(7));
  EXPECT_EQ(Option(IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(Option(IPPROTO_TCP, TCP_USER_TIMEOUT), 7000);
  EXPECT_EQ(SendBuffer(), static_cast<int>(kLeastInFlightBytes));
  tuning.Update(socket_, 10e6);
  EXPECT_GT(SendBuffer(), static_cast<int>(kLeastInFlightBytes));
}

TEST_F(TuneTcpTest, ALimitThatTheKernelDoesNotAllowIsNone) {
  TcpTuning tuning(socket_, absl::Seconds(7));
  EXPECT_NE(Option(SOL_SOCKET, 72 /* SO_BUF_LOCK */), 0);
  tuning.Update(socket_, 1e13);  // More than any wmem_max.
  EXPECT_EQ(Option(SOL_SOCKET, 72), 0);
}

}  // namespace
}  // namespace pactrain::agent
