#include "agent/exchange/tcp/tcp_tuning.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace pactrain::agent {
namespace {

TEST(BatchBytesTest, IsWhatTheLinkTakesInAFewMilliseconds) {
  EXPECT_EQ(BatchBytes(0), size_t{32 << 10});
  EXPECT_EQ(BatchBytes(12.5e6), size_t{32 << 10});
  EXPECT_EQ(BatchBytes(50e6), size_t{100'000});
  EXPECT_EQ(BatchBytes(1e12), size_t{128 << 10});
}

constexpr absl::Duration kNow = absl::Seconds(100);

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
    peer_ = accept(listener_, nullptr, nullptr);
  }
  ~TuneTcpTest() override {
    close(socket_);
    close(peer_);
    close(listener_);
  }

  int Option(int level, int option) const {
    int value = -1;
    socklen_t size = sizeof value;
    EXPECT_EQ(getsockopt(socket_, level, option, &value, &size), 0);
    return value;
  }
  std::string Control() const {
    char name[16] = {};
    socklen_t size = sizeof name - 1;
    EXPECT_EQ(getsockopt(socket_, IPPROTO_TCP, TCP_CONGESTION, name, &size), 0);
    return name;
  }
  // As many as the kernel is to hold, and more than the peer's buffer takes.
  static size_t Fill(int fd, TcpTuning& tuning) {
    const std::vector<char> batch(32 << 10);
    size_t sent = 0;
    while (tuning.HasRoom(fd, kNow)) {
      const ssize_t n = send(fd, batch.data(), batch.size(), MSG_DONTWAIT);
      if (n < 0) break;
      sent += static_cast<size_t>(n);
    }
    return sent;
  }

  int listener_ = -1;
  int socket_ = -1;
  int peer_ = -1;
};

TEST_F(TuneTcpTest, Options) {
  const TcpTuning tuning(socket_, absl::Seconds(7));
  EXPECT_EQ(Option(IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(Option(IPPROTO_TCP, TCP_USER_TIMEOUT), 7000);
}

TEST_F(TuneTcpTest, OfANearConnectionTheKernelHoldsLittleUnacknowledged) {
  TcpTuning tuning(socket_, absl::Seconds(7));
  EXPECT_FALSE(tuning.is_far());
  EXPECT_TRUE(tuning.HasRoom(socket_, kNow));
  Fill(socket_, tuning);
  EXPECT_FALSE(tuning.HasRoom(socket_, kNow));
  int held = 0;
  EXPECT_EQ(ioctl(socket_, SIOCOUTQ, &held), 0);
  EXPECT_LE(held, static_cast<int>(kLeastInFlightBytes + (32 << 10)));
  // What the peer has read makes room.
  std::vector<char> read(1 << 20);
  while (held > 0) {
    EXPECT_GT(recv(peer_, read.data(), read.size(), 0), 0);
    EXPECT_EQ(ioctl(socket_, SIOCOUTQ, &held), 0);
  }
  EXPECT_TRUE(tuning.HasRoom(socket_, kNow));
}

TEST_F(TuneTcpTest, AFarConnectionKeepsTheSystemsCongestionControl) {
  const std::string before = Control();
  const TcpTuning tuning(socket_, absl::Seconds(7), absl::ZeroDuration());
  EXPECT_TRUE(tuning.is_far());
  EXPECT_FALSE(tuning.is_lossy());
  EXPECT_EQ(Control(), before);
}

// So many stretches of a far link, of which a thousandth was lost.
TcpState Lossy(int stretch) {
  const auto sent = static_cast<uint64_t>(stretch) << 22;
  return {.least_rtt = absl::Milliseconds(20),
          .rtt = absl::Milliseconds(20),
          .acknowledged = sent - sent / 1000,
          .sent = sent,
          .sent_again = sent / 1000,
          .segment_bytes = 1000,
          .bytes_per_second = 5e6};
}

TEST_F(TuneTcpTest, ALossyOneHasAnotherControlAndNoLimitUntilItIsNear) {
  const std::string before = Control();
  const std::string other = before == "reno" ? "cubic" : "reno";
  TcpTuning tuning(socket_, absl::Seconds(7), kFarRtt, other);
  tuning.Apply(socket_, Lossy(1));
  tuning.Apply(socket_, Lossy(2));
  EXPECT_FALSE(tuning.is_lossy());
  EXPECT_EQ(Control(), before);
  tuning.Apply(socket_, Lossy(3));
  EXPECT_TRUE(tuning.is_lossy());
  EXPECT_EQ(Control(), other);
  Fill(socket_, tuning);
  EXPECT_TRUE(tuning.HasRoom(socket_, kNow));
  TcpState near = Lossy(4);
  near.least_rtt = absl::Milliseconds(1);
  near.bytes_per_second = 0;
  tuning.Apply(socket_, near);
  EXPECT_FALSE(tuning.is_lossy());
  EXPECT_EQ(Control(), before);
  EXPECT_FALSE(tuning.HasRoom(socket_, kNow));
}

TEST_F(TuneTcpTest, ControlThatTheSystemHasNotLeavesTheLimit) {
  const std::string before = Control();
  TcpTuning tuning(socket_, absl::Seconds(7), kFarRtt, "nosuch");
  tuning.Apply(socket_, Lossy(1));
  tuning.Apply(socket_, Lossy(2));
  EXPECT_FALSE(tuning.lacks_control());
  tuning.Apply(socket_, Lossy(3));
  EXPECT_TRUE(tuning.lacks_control());
  EXPECT_FALSE(tuning.is_lossy());
  EXPECT_EQ(Control(), before);
}

// No queue shows here: only the peer's window holds anything back.
TEST_F(TuneTcpTest, OfAFarOneTheKernelGetsTwiceAsMuchWhileNothingQueues) {
  TcpTuning tuning(socket_, absl::Seconds(7), absl::ZeroDuration());
  Fill(socket_, tuning);  // Doubled once.
  EXPECT_FALSE(tuning.HasRoom(socket_, kNow));
  int held = 0;
  EXPECT_EQ(ioctl(socket_, SIOCOUTQ, &held), 0);
  EXPECT_GE(held, static_cast<int>(2 * kLeastInFlightBytes));
  EXPECT_LE(held, static_cast<int>(2 * kLeastInFlightBytes + (32 << 10)));
  // Then round trips have to show what that did.
  EXPECT_FALSE(tuning.HasRoom(socket_, kNow + absl::Milliseconds(49)));
  EXPECT_TRUE(tuning.HasRoom(socket_, kNow + absl::Milliseconds(51)));
  tuning.Update(socket_);  // Does not take it back.
  EXPECT_TRUE(tuning.HasRoom(socket_, kNow + absl::Milliseconds(51)));
}

}  // namespace
}  // namespace pactrain::agent
