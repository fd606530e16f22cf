// Trainers that clean up after a dead agent while the next one starts.
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "agent/local/socket_file.h"
#include "base/fd.h"
#include "gtest/gtest.h"
#include "trainer/dead_socket.h"

namespace pactrain::e2e {
namespace {

// A bound socket on which nobody listens: what a killed agent leaves.
void LeaveDeadSocket(const std::string& path) {
  const base::Fd dead(socket(AF_UNIX, SOCK_SEQPACKET, 0));
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  ASSERT_EQ(
      bind(dead.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)),
      0);
}

TEST(Socket, OfAnAgentThatHasStartedIsNeverTakenForADeadOne) {
  std::string folder = "/tmp/pactrain-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/agent.sock";
  std::atomic<bool> done = false;
  std::vector<std::thread> trainers;
  for (int i = 0; i < 8; ++i) {
    trainers.emplace_back([&] {
      while (!done) trainer::RemoveDeadSocket(path);
    });
  }
  for (int i = 0; i < 2000 && !HasFailure(); ++i) {
    LeaveDeadSocket(path);
    const auto started = agent::SocketFile::Listen(path);
    EXPECT_TRUE(started.ok()) << started.status();
    EXPECT_TRUE(std::filesystem::exists(path)) << "start " << i;
  }
  done = true;
  for (std::thread& trainer : trainers) trainer.join();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace pactrain::e2e
