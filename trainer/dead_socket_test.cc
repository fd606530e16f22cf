#include "trainer/dead_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/fd.h"
#include "gtest/gtest.h"

namespace pactrain::trainer {
namespace {

class DeadSocketTest : public ::testing::Test {
 protected:
  // Not under TEST_TMPDIR: its paths are longer than a socket's may be.
  void SetUp() override { ASSERT_NE(mkdtemp(directory_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string path() const { return directory_ + "/agent.sock"; }
  bool Exists() const { return std::filesystem::exists(path()); }
  // Leaves its file when it is closed, as a killed agent does.
  base::Fd Listen() const {
    base::Fd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    path().copy(name.sun_path, sizeof(name.sun_path) - 1);
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&name),
                   sizeof(name)),
              0);
    EXPECT_EQ(listen(listener.get(), 16), 0);
    return listener;
  }

  std::string directory_ = "/tmp/pactrain-test-XXXXXX";
};

TEST_F(DeadSocketTest, IsRemoved) {
  Listen();
  ASSERT_TRUE(Exists());
  RemoveDeadSocket(path());
  EXPECT_FALSE(Exists());
}

TEST_F(DeadSocketTest, IsRemovedWhenTheAgentEndsMeanwhile) {
  base::Fd listener = Listen();
  std::thread dying([&] {
    const base::Fd probe(accept(listener.get(), nullptr, nullptr));
    listener = base::Fd();
  });
  RemoveDeadSocket(path());
  dying.join();
  EXPECT_FALSE(Exists());
}

TEST_F(DeadSocketTest, StaysWhileSomebodyListens) {
  const base::Fd listener = Listen();
  RemoveDeadSocket(path());
  EXPECT_TRUE(Exists());
}

TEST_F(DeadSocketTest, StaysWhileAnAgentStarts) {
  Listen();
  base::Fd starting(open(directory_.c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(flock(starting.get(), LOCK_EX), 0);
  RemoveDeadSocket(path());
  EXPECT_TRUE(Exists());
  starting = base::Fd();
  RemoveDeadSocket(path());
  EXPECT_FALSE(Exists());
}

TEST_F(DeadSocketTest, AFileOfAnotherKindStays) {
  std::ofstream(path()) << "ours";
  RemoveDeadSocket(path());
  EXPECT_TRUE(Exists());
}

TEST_F(DeadSocketTest, NothingThereIsNoMatter) {
  RemoveDeadSocket(path());
  RemoveDeadSocket("/nonexistent/agent.sock");
}

}  // namespace
}  // namespace pactrain::trainer
