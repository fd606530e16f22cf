#include "base/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

// The service manager's end: a datagram socket with this name.
class Manager {
 public:
  explicit Manager(std::string name)
      : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0)) {
    setenv("NOTIFY_SOCKET", name.c_str(), 1);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    if (name[0] == '@') name[0] = '\0';
    std::memcpy(address.sun_path, name.data(), name.size());
    bound_ = bind(fd_, reinterpret_cast<sockaddr*>(&address),
                  static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                         name.size())) == 0;
  }
  ~Manager() {
    close(fd_);
    unsetenv("NOTIFY_SOCKET");
  }
  bool bound() const { return bound_; }
  // Of one datagram; empty: none came.
  std::string Told() {
    char text[64] = {};
    return recv(fd_, text, sizeof text - 1, 0) > 0 ? text : "";
  }

 private:
  int fd_;
  bool bound_ = false;
};

TEST(ServiceManagerTest, IsToldAtAPath) {
  // Not a test's folder: its path may be longer than a socket's can be.
  char folder[] = "/tmp/pactrain-notify-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/notify";
  Manager manager(path);
  ASSERT_TRUE(manager.bound());
  EXPECT_TRUE(TellServiceManager("READY=1"));
  EXPECT_EQ(manager.Told(), "READY=1");
  EXPECT_EQ(manager.Told(), "") << "once";
  unlink(path.c_str());
  rmdir(folder);
}

TEST(ServiceManagerTest, IsToldUnderAnAbstractName) {
  Manager manager("@pactrain-test-" + std::to_string(getpid()));
  ASSERT_TRUE(manager.bound());
  EXPECT_TRUE(TellServiceManager("WATCHDOG=1"));
  EXPECT_EQ(manager.Told(), "WATCHDOG=1");
}

TEST(ServiceManagerTest, NoneIsNoMistakeAndOneThatIsGoneIs) {
  unsetenv("NOTIFY_SOCKET");
  EXPECT_TRUE(TellServiceManager("READY=1"));
  for (const std::string& name :
       {std::string("/tmp/pactrain-nobody"), std::string(200, 'x')}) {
    setenv("NOTIFY_SOCKET", name.c_str(), 1);
    EXPECT_FALSE(TellServiceManager("READY=1")) << name;
  }
  unsetenv("NOTIFY_SOCKET");
}

TEST(ServiceManagerTest, WatchdogIsToldTwiceInItsTimeAndOfThisProcessAlone) {
  const auto period = [](const char* limit, const std::string& process) {
    setenv("WATCHDOG_USEC", limit, 1);
    setenv("WATCHDOG_PID", process.c_str(), 1);
    return WatchdogPeriod();
  };
  const std::string self = std::to_string(getpid());
  EXPECT_EQ(period("3000000", self), std::chrono::milliseconds(1500));
  EXPECT_EQ(period("3000000", ""), std::chrono::milliseconds(1500));
  EXPECT_EQ(period("3000000", std::to_string(getppid())), std::nullopt);
  EXPECT_EQ(period("", self), std::nullopt);
  EXPECT_EQ(period("3s", self), std::nullopt);
  unsetenv("WATCHDOG_USEC");
  unsetenv("WATCHDOG_PID");
  EXPECT_EQ(WatchdogPeriod(), std::nullopt);
}

}  // namespace
}  // namespace pactrain::base
