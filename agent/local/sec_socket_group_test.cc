// Several users at one agent's socket: who of them may use it, and that none
// fills it so that others find no place.
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/local/test_local_server.h"
#include "base/check.h"
#include "base/log_capture.h"
#include "base/test_descriptors.h"

namespace pactrain::agent {
namespace {

using ::testing::HasSubstr;

// What a process of this user and these groups is told; empty: it was let in.
class SocketGroupTest : public LocalServerFixture {
 protected:
  static constexpr gid_t kGroup = 64999;
  static constexpr uid_t kAlice = 64001, kBob = 64002;

  void Restart(const LocalAccess& access) {
    server_.reset();
    std::filesystem::remove_all(absl::StrCat(directory_, "/run"));
    ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
    options_.access = access;
    ASSERT_OK_AND_ASSIGN(server_, LocalServer::Start(io_, options_, &events_));
  }

  // In a child: it is this user from now on.
  static void Become(uid_t user, const std::vector<gid_t>& groups) {
    alarm(120);
    if (setgroups(groups.size(), groups.data()) != 0 || setgid(65534) != 0 ||
        setuid(user) != 0) {
      _exit(9);
    }
  }

  // Why it is refused, or `Packet` has what it is told; "": it is let in.
  template <typename Packet = wire::Failed>
  std::string ToldTo(uid_t user, const std::vector<gid_t>& groups) {
    constexpr bool kAlways = !std::is_same_v<Packet, wire::Failed>;
    int answer[2];
    PT_CHECK(pipe2(answer, O_NONBLOCK) == 0);
    const size_t before = events_.hellos.size();
    const pid_t child = fork();
    if (child == 0) {
      Become(user, groups);
      RawTrainer raw(options_.socket_path);
      std::string text = "cannot connect";
      if (raw.connected()) {
        raw.SendBytes(PacketOf(MakeHello()));
        Packet told = {};
        while (raw.Receive(&told, sizeof told) < 0) poll(nullptr, 0, 10);
        text = told.text;
      }
      [[maybe_unused]] const ssize_t n =
          write(answer[1], text.data(), text.size());
      _exit(0);
    }
    char text[1024] = {};
    EXPECT_TRUE(RunUntil([&] {
      return read(answer[0], text, sizeof text - 1) > 0 ||
             (!kAlways && events_.hellos.size() > before);
    }));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(answer[0]);
    close(answer[1]);
    return text;
  }
};

TEST_F(SocketGroupTest, SecItsMembersAndNobodyElseMayUseTheSocket) {
  if (geteuid() != 0) GTEST_SKIP() << "needs to be root to be somebody else";
  LocalAccess access;
  access.group = kGroup;
  Restart(access);
  EXPECT_EQ(ToldTo(kAlice, {kGroup}), "");
  EXPECT_EQ(ToldTo(kAlice, {}), "cannot connect");
  access.users = {kAlice};
  Restart(access);
  EXPECT_EQ(ToldTo(kAlice, {kGroup}), "");
  EXPECT_THAT(ToldTo(kBob, {kGroup}),
              HasSubstr("its --socket-users do not name it"));
  // Also where modes were changed by hand.
  ASSERT_EQ(chmod(absl::StrCat(directory_, "/run").c_str(), 0755), 0);
  ASSERT_EQ(chmod(options_.socket_path.c_str(), 0666), 0);
  EXPECT_THAT(ToldTo(kAlice, {}), HasSubstr("it is not of group 64999"));
}

TEST_F(SocketGroupTest, AFolderThatTheGroupCannotEnterIsRefusedInWords) {
  if (geteuid() != 0) GTEST_SKIP() << "needs to be root to give it away";
  server_.reset();
  const std::string run = absl::StrCat(directory_, "/run");
  ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  ASSERT_EQ(chmod(run.c_str(), 0700), 0);
  options_.access.group = kGroup;
  EXPECT_THAT(
      LocalServer::Start(io_, options_, &events_),
      base::StatusIs(absl::StatusCode::kFailedPrecondition,
                     HasSubstr(absl::StrCat("cannot enter ", run,
                                            "; run: chgrp 64999 ", run))));
}

// Connections of a user of the group, until the end of a test.
class Crowd {
 public:
  explicit Crowd(pid_t child) : child_(child) {}
  ~Crowd() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

 private:
  const pid_t child_;
};

class CrowdTest : public SocketGroupTest {
 protected:
  void SetUp() override {
    SocketGroupTest::SetUp();
    if (geteuid() != 0) GTEST_SKIP() << "needs to be root to be somebody else";
    base::AllowDescriptors(4 * protocol::kMaxLocalConnections);
    access_.group = kGroup;
  }

  // Bob connects so often, and says nothing or, if so, Hello. Returns once all
  // of it is on its way.
  Crowd BobConnects(int times, bool hello = false) {
    int done[2];
    PT_CHECK(pipe2(done, O_NONBLOCK) == 0);
    const pid_t child = fork();
    if (child == 0) {
      Become(kBob, {kGroup});
      std::vector<RawTrainer> crowd;
      for (int i = 0; i < times; ++i) {
        crowd.emplace_back(options_.socket_path);
        if (hello) crowd.back().Send(MakeHello());
      }
      [[maybe_unused]] const ssize_t n = write(done[1], "x", 1);
      while (true) pause();
    }
    char byte;
    EXPECT_TRUE(RunUntil([&] { return read(done[0], &byte, 1) == 1; }));
    close(done[0]);
    close(done[1]);
    return Crowd(child);
  }

  LocalAccess access_;
  absl::Duration now_ = base::MonotonicNow();
  base::LogCapture log_;
};

TEST_F(CrowdTest, sec_OneUsersMuteConnectionsShutNobodyOut) {
  options_.handshake = absl::Minutes(10);
  Restart(access_);
  constexpr int kMost = protocol::kMaxLocalConnections;
  const Crowd bob = BobConnects(kMost + 100);
  EXPECT_TRUE(RunUntil([&] { return server_->refused() == 100; }));
  EXPECT_EQ(server_->open_count(), size_t{kMost});
  for (int tries = 0; tries < 5; ++tries)
    EXPECT_EQ(ToldTo(kAlice, {kGroup}), "");
  EXPECT_EQ(log_.Count("most are of user 64002"), 1) << log_.text();
}

// Refused ones linger until they have read why.
TEST_F(CrowdTest, sec_WhoMayNotUseTheSocketTakesNoPlaceThere) {
  access_.users = {kAlice};
  options_.max_connections = 10;
  options_.link.linger = absl::Minutes(10);
  Restart(access_);
  const Crowd bob = BobConnects(500);
  EXPECT_TRUE(RunUntil([&] { return server_->refused() == 500; }));
  EXPECT_EQ(ToldTo(kAlice, {kGroup}), "");
  EXPECT_EQ(log_.Count("--socket-users do not name it"), 1) << log_.text();
}

TEST_F(CrowdTest, sec_limits_LocalRefused) {
  access_.users = {kAlice};
  options_.link.linger = absl::Minutes(10);
  Restart(access_);
  constexpr int kMost = protocol::kMaxLocalRefused;
  const Crowd bob = BobConnects(kMost);
  EXPECT_TRUE(RunUntil([&] { return server_->refused() == size_t{kMost}; }));
  EXPECT_EQ(server_->open_count(), size_t{kMost});
  // The newest is told, and the oldest closed.
  const Crowd more = BobConnects(1);
  EXPECT_TRUE(RunUntil([&] { return server_->refused() == kMost + 1u; }));
  EXPECT_EQ(server_->open_count(), size_t{kMost});
  EXPECT_THAT(ToldTo(kBob, {kGroup}), HasSubstr("do not name it"));
}

TEST_F(CrowdTest, sec_limits_LocalConnectionsOfAnotherUser) {
  Restart(access_);
  constexpr int kMost = protocol::kMaxLocalConnectionsOfAnotherUser;
  const Crowd bob = BobConnects(kMost, /*hello=*/true);
  ASSERT_TRUE(RunUntil([&] { return events_.hellos.size() == size_t{kMost}; }));
  EXPECT_THAT(ToldTo(kBob, {kGroup}),
              HasSubstr(absl::StrCat("user 64002 has trainers on ", kMost)));
  EXPECT_EQ(ToldTo(kAlice, {kGroup}), "");
  std::vector<RawTrainer> own;
  for (int i = 0; i <= kMost; ++i) own.push_back(Attach());
}

// Else the coordinator would close the connection of all users' agent.
TEST_F(CrowdTest, sec_limits_LocalHellosOfAnotherUser) {
  // No machine is so slow that he is given more meanwhile.
  options_.now = [this] { return now_; };
  Restart(access_);
  constexpr size_t kMost = protocol::kMaxLocalHellosAtOnce;
  for (int tries = 0; tries < 2; ++tries) {
    const Crowd bob = BobConnects(kMost / 2, /*hello=*/true);
    ASSERT_TRUE(RunUntil(
        [&] { return events_.hellos.size() == (tries + 1) * kMost / 2; }));
  }
  EXPECT_TRUE(RunUntil([&] { return server_->open_count() == 0; }));
  {
    constexpr int kMore = protocol::kMaxLocalHellosPerSecond;
    const Crowd bob = BobConnects(kMore, /*hello=*/true);
    EXPECT_TRUE(RunUntil([&] { return log_.Count("more of them wait") == 1; }));
    EXPECT_THAT(ToldTo<wire::Waiting>(kBob, {kGroup}),
                HasSubstr("takes 1100 trainers of user 64002 at once, and then "
                          "16 a second"));
    EXPECT_EQ(events_.hellos.size(), kMost);
    EXPECT_EQ(ToldTo(kAlice, {kGroup}), "");
    EXPECT_EQ(events_.hellos.size(), kMost + 1);
    EXPECT_TRUE(RunUntil([&] { return server_->open_count() == kMore; }));
    now_ += absl::Seconds(1);  // Each gets its turn.
    EXPECT_TRUE(
        RunUntil([&] { return events_.hellos.size() == kMost + 1 + kMore; }));
  }
  EXPECT_EQ(server_->refused(), 0u);
  // Of those who are gone nothing is heard any more.
  EXPECT_TRUE(RunUntil([&] { return server_->open_count() == 0; }));
}

}  // namespace
}  // namespace pactrain::agent
