#include "base/rpc/traffic_meter.h"

#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>

#include "base/rpc/test_listener.h"
#include "gmock/gmock.h"

namespace pactrain::base {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr uint64_t kStream = TrafficMeter::kBytesOfStream;
constexpr uint64_t kLook = TrafficMeter::kBytesOfLook;

// Two ends of a connection.
class Connection {
 public:
  Connection() = default;
  ~Connection() {
    close(client_);
    close(server_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int server() const { return server_; }
  // Until the system has taken them; nobody reads them.
  void Send(size_t bytes) {
    sent_ += bytes;
    const std::string text(bytes, '.');
    ASSERT_EQ(send(client_, text.data(), bytes, 0), ssize_t(bytes));
    std::string come(sent_, ' ');
    ASSERT_EQ(recv(server_, come.data(), sent_, MSG_PEEK | MSG_WAITALL),
              ssize_t(sent_));
  }

 private:
  TestListener listener_;
  const int client_ = listener_.Connect(), server_ = listener_.Accept();
  size_t sent_ = 0;
};

class TrafficMeterTest : public ::testing::Test {
 protected:
  TrafficMeterTest() {
    meter_.Add(one_.server(), "one");
    meter_.Add(two_.server(), "two");
  }

  Connection one_, two_;
  std::map<std::string, uint64_t> streams_;
  std::set<std::string> asked_;
  TrafficMeter meter_{[this](const std::set<std::string>& peers) {
    asked_ = peers;
    std::map<std::string, uint64_t> told;
    for (const auto& [peer, streams] : streams_) {
      if (peers.contains(peer)) told[peer] = streams;
    }
    return told;
  }};
};

TEST_F(TrafficMeterTest, CountsEachByteOnce) {
  one_.Send(100);
  two_.Send(7);
  EXPECT_THAT(meter_.Count({one_.server()}),
              ElementsAre(Pair(one_.server(), 100)));
  EXPECT_THAT(meter_.Count({one_.server()}), IsEmpty());
  one_.Send(50);
  // What came while nobody asked is not lost.
  EXPECT_THAT(meter_.Count({one_.server(), two_.server()}),
              ::testing::UnorderedElementsAre(Pair(one_.server(), 50),
                                              Pair(two_.server(), 7)));
  EXPECT_THAT(asked_, IsEmpty());
}

TEST_F(TrafficMeterTest, StreamsCountAsMoreBytesAndOnce) {
  streams_ = {{"one", 30}};
  one_.Send(kLook);
  EXPECT_THAT(meter_.Count({one_.server()}),
              ElementsAre(Pair(one_.server(), kLook + 30 * kStream)));
  streams_ = {{"one", 32}};
  one_.Send(kLook);
  EXPECT_THAT(meter_.Count({one_.server()}),
              ElementsAre(Pair(one_.server(), kLook + 2 * kStream)));
}

// Little by little, they are looked up in the end.
TEST_F(TrafficMeterTest, StreamsAreLookedUpAfterSoManyBytes) {
  streams_ = {{"one", 30}};
  one_.Send(kLook - 1);
  EXPECT_THAT(meter_.Count({one_.server()}),
              ElementsAre(Pair(one_.server(), kLook - 1)));
  EXPECT_THAT(asked_, IsEmpty());
  one_.Send(1);
  two_.Send(1);
  EXPECT_THAT(
      meter_.Count({one_.server(), two_.server()}),
      ::testing::UnorderedElementsAre(Pair(one_.server(), 1 + 30 * kStream),
                                      Pair(two_.server(), 1)));
  EXPECT_THAT(asked_, ElementsAre("one"));
}

// gRPC forgets a connection before it is counted for the last time: each 256
// bytes are taken for a stream.
TEST_F(TrafficMeterTest, StreamsOfOneThatIsForgottenAreGuessed) {
  one_.Send(kLook);
  const uint64_t guessed = kLook / TrafficMeter::kBytesOfUnknownStream;
  EXPECT_THAT(meter_.Count({one_.server()}),
              ElementsAre(Pair(one_.server(), kLook + guessed * kStream)));
  one_.Send(10);
  EXPECT_THAT(meter_.Count({one_.server()}),
              ElementsAre(Pair(one_.server(), 10)));
}

// As of an older connection of the same address, which gRPC still knows.
TEST_F(TrafficMeterTest, FewerStreamsThanBeforeCountForNothing) {
  streams_ = {{"one", 30}};
  one_.Send(kLook);
  meter_.Count({one_.server()});
  streams_ = {{"one", 3}};
  one_.Send(kLook);
  EXPECT_THAT(meter_.Count({one_.server()}),
              ElementsAre(Pair(one_.server(), kLook)));
  streams_ = {{"one", 31}};
  one_.Send(kLook);
  EXPECT_THAT(meter_.Count({one_.server()}),
              ElementsAre(Pair(one_.server(), kLook + kStream)));
}

// An aborted socket tells of no bytes, and of no fewer than before.
TEST_F(TrafficMeterTest, OneThatWasAbortedHasSentNothingMore) {
  one_.Send(100);
  meter_.Count({one_.server()});
  sockaddr none = {};
  none.sa_family = AF_UNSPEC;
  ASSERT_EQ(connect(one_.server(), &none, sizeof none), 0);
  EXPECT_THAT(meter_.Count({one_.server()}), IsEmpty());
}

// The next connection may have its number.
TEST_F(TrafficMeterTest, ANewOneStartsFromNothing) {
  one_.Send(100);
  meter_.Count({one_.server()});
  meter_.Remove(one_.server());
  meter_.Add(one_.server(), "three");
  EXPECT_THAT(meter_.Count({one_.server()}),
              ElementsAre(Pair(one_.server(), 100)));
}

}  // namespace
}  // namespace pactrain::base
