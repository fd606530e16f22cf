// An agent's socket and trainers written by hand, for tests.
#ifndef PACTRAIN_AGENT_LOCAL_TEST_LOCAL_SERVER_H_
#define PACTRAIN_AGENT_LOCAL_TEST_LOCAL_SERVER_H_

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/local/local_server.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace pactrain::agent {

// What a server told, in order.
class LocalRecorder : public LocalEvents {
 public:
  void OnHello(uint64_t trainer, const wire::Hello& hello) override {
    hellos.push_back(trainer);
  }
  void OnMessage(uint64_t trainer, const Message& message) override {
    messages.push_back(message);
  }
  void OnTrainerGone(uint64_t trainer, const std::string& reason) override {
    gone.push_back(reason);
  }
  wire::About OnAsk() override {
    wire::About about = {};
    about.header = {wire::Kind::kAbout, sizeof(about)};
    std::strcpy(about.agent, "node-1");
    return about;
  }
  std::vector<uint64_t> hellos;
  std::vector<Message> messages;
  std::vector<std::string> gone;
};

// A trainer written by hand.
class RawTrainer {
 public:
  RawTrainer() : fd_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {}
  explicit RawTrainer(const std::string& path) : RawTrainer() { Connect(path); }
  void Connect(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    connected_ = connect(fd_.get(), reinterpret_cast<sockaddr*>(&address),
                         sizeof address) == 0;
  }
  bool connected() const { return connected_; }
  template <typename Message>
  void Send(const Message& message) {
    SendBytes(PacketOf(message));
  }
  void SendBytes(const std::string& bytes) {
    ASSERT_EQ(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void SendWithDescriptor(std::string bytes, base::Fd descriptor) {
    iovec part = {bytes.data(), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = descriptor.get();
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    ASSERT_EQ(sendmsg(fd_.get(), &message, MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // The size of the next packet, 0 at the end, -1 if there is none now.
  ssize_t Receive(void* packet, size_t bytes,
                  std::vector<base::Fd>* fds = nullptr) {
    iovec part = {packet, bytes};
    alignas(cmsghdr) char control[256] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(fd_.get(), &message, MSG_DONTWAIT);
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (got > 0 && header != nullptr && fds != nullptr) {
      const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        fds->emplace_back(fd);
      }
    }
    return got;
  }
  void Close() { fd_ = base::Fd(); }

 private:
  base::Fd fd_;
  bool connected_ = false;
};

inline wire::Hello MakeHello() {
  wire::Hello hello = {};
  hello.header = {wire::Kind::kHello, sizeof(hello)};
  hello.version = wire::kVersion;
  return hello;
}

class LocalServerFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    // Not TempDir(): it may be longer than a socket path can be.
    directory_ = "/tmp/pactrain-local-XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    options_.socket_path = absl::StrCat(directory_, "/run/agent.sock");
    Start();
  }
  void TearDown() override {
    server_.reset();
    rmdir(absl::StrCat(directory_, "/run").c_str());
    EXPECT_EQ(rmdir(directory_.c_str()), 0) << "something is left behind";
  }
  void Start() {
    ASSERT_OK_AND_ASSIGN(server_, LocalServer::Start(io_, options_, &events_));
  }
  bool RunUntil(const std::function<bool()>& done) {
    const absl::Duration end = base::MonotonicNow() + absl::Minutes(2);
    while (!done()) {  // Asked once a turn: it may take a packet.
      if (base::MonotonicNow() > end) return false;
      io_.run_one_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  RawTrainer Connect() { return RawTrainer(options_.socket_path); }
  RawTrainer Attach() {
    RawTrainer trainer = Connect();
    const size_t before = events_.hellos.size();
    trainer.Send(MakeHello());
    EXPECT_TRUE(RunUntil([&] { return events_.hellos.size() > before; }));
    return trainer;
  }
  // What the agent answered last before it hung up.
  wire::Failed ExpectFailed(RawTrainer& trainer) {
    wire::Failed failed = {};
    EXPECT_TRUE(RunUntil([&] {
      return trainer.Receive(&failed, sizeof failed) == sizeof failed;
    }));
    EXPECT_EQ(failed.final, 1);
    char byte;
    EXPECT_TRUE(RunUntil([&] { return trainer.Receive(&byte, 1) == 0; }));
    return failed;
  }

  asio::io_context io_;
  LocalRecorder events_;
  std::string directory_;
  LocalServer::Options options_;
  std::unique_ptr<LocalServer> server_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_TEST_LOCAL_SERVER_H_
