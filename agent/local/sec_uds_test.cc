// Who may use an agent's socket, and what tells that a trainer is gone: the
// process itself, not its number or whoever holds its end of the socket.
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/local/test_local_server.h"
#include "base/check.h"

namespace pactrain::agent {
namespace {

using ::testing::HasSubstr;

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5; Debian 12's headers are older.
#endif

using UdsTest = LocalServerFixture;

TEST_F(UdsTest, sec_uds_fd_smuggle) {
  RawTrainer trainer = Connect();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const Fd read_end(ends[0]);
  trainer.SendWithDescriptor(PacketOf(MakeHello()), Fd(ends[1]));
  ASSERT_TRUE(RunUntil([&] { return !events_.hellos.empty(); }));
  // Its only other holder would be the agent.
  char byte;
  EXPECT_EQ(read(read_end.get(), &byte, 1), 0);
}

// Who gets past the modes of directory and file, is asked who they are.
TEST_F(UdsTest, sec_uds_other_uid) {
  if (geteuid() != 0) GTEST_SKIP() << "needs to be root to be somebody else";
  const std::string run = absl::StrCat(directory_, "/run");
  const auto ends_as = [&](uid_t uid) {
    const pid_t child = fork();
    if (child == 0) {
      if (setuid(uid) != 0) _exit(9);
      RawTrainer raw(options_.socket_path);
      _exit(raw.connected() ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  constexpr uid_t kNobody = 65534;
  EXPECT_EQ(ends_as(0), 0);
  EXPECT_EQ(ends_as(kNobody), 1) << "the modes let others in";
  ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  ASSERT_EQ(chmod(run.c_str(), 0755), 0);
  ASSERT_EQ(chmod(options_.socket_path.c_str(), 0666), 0);
  int answer[2];
  ASSERT_EQ(pipe2(answer, O_NONBLOCK), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    if (setuid(kNobody) != 0) _exit(9);
    RawTrainer raw(options_.socket_path);
    raw.SendBytes(PacketOf(MakeHello()));
    wire::Failed failed = {};
    while (raw.Receive(&failed, sizeof failed) < 0) poll(nullptr, 0, 10);
    [[maybe_unused]] const ssize_t n =
        write(answer[1], failed.text, strlen(failed.text));
    _exit(0);
  }
  char text[1024] = {};
  EXPECT_TRUE(RunUntil([&] { return read(answer[0], text, sizeof text) > 0; }));
  EXPECT_THAT(text, HasSubstr("user 65534 may not use the agent of user 0"));
  EXPECT_TRUE(events_.hellos.empty());
  waitpid(child, nullptr, 0);
  close(answer[0]);
  close(answer[1]);
}

// Members by their own group and by one of their others, nobody else; and the
// file's mode does not let others as far as that.
TEST_F(UdsTest, sec_uds_group) {
  if (geteuid() != 0) GTEST_SKIP() << "needs to be root to be somebody else";
  constexpr gid_t kTrainers = 4321;
  server_.reset();
  options_.group = kTrainers;
  Start();
  ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  ASSERT_EQ(chmod(absl::StrCat(directory_, "/run").c_str(), 0755), 0);
  struct stat file = {};
  ASSERT_EQ(stat(options_.socket_path.c_str(), &file), 0);
  EXPECT_EQ(file.st_gid, kTrainers);
  EXPECT_EQ(file.st_mode & 0777, 0660u);
  // 0: let in; 1: refused in words; 2: it did not get as far.
  const auto ends_as = [&](gid_t own, const std::vector<gid_t>& others) {
    const size_t before = events_.hellos.size();
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      if (setgroups(others.size(), others.data()) != 0 || setgid(own) != 0 ||
          setuid(65534) != 0) {
        _exit(9);
      }
      RawTrainer raw(options_.socket_path);
      if (!raw.connected()) _exit(2);
      raw.SendBytes(PacketOf(MakeHello()));
      char byte;
      while (raw.Receive(&byte, 1) < 0) poll(nullptr, 0, 10);
      _exit(1);
    }
    int status = 0;
    bool ended = false;
    RunUntil([&] {
      ended = waitpid(child, &status, WNOHANG) == child;
      return ended || events_.hellos.size() > before;
    });
    if (ended) return WEXITSTATUS(status);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return 0;
  };
  EXPECT_EQ(ends_as(kTrainers, {}), 0);
  EXPECT_EQ(ends_as(65534, {7, kTrainers, 9}), 0);
  EXPECT_EQ(ends_as(65534, {7, 9}), 2) << "the mode lets others in";
  ASSERT_EQ(chmod(options_.socket_path.c_str(), 0666), 0);
  EXPECT_EQ(ends_as(65534, {7, 9}), 1) << "it was not asked who it is";
}

// A trainer that has sent its Hello, and a child of it that holds its socket
// as a DataLoader's worker does, for as long as this lives.
class TrainerWithChild {
 public:
  explicit TrainerWithChild(const std::string& socket_path) {
    int ready[2];
    PT_CHECK(pipe(ready) == 0 && pipe(gate_) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      RawTrainer raw(socket_path);
      if (fork() == 0) {
        close(gate_[1]);
        char byte;
        [[maybe_unused]] const ssize_t n = read(gate_[0], &byte, 1);
        _exit(0);
      }
      raw.SendBytes(PacketOf(MakeHello()));
      [[maybe_unused]] const ssize_t n = write(ready[1], "x", 1);
      pause();
      _exit(0);
    }
    char byte;
    PT_CHECK(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    close(ready[1]);
  }
  ~TrainerWithChild() {
    close(gate_[0]);
    close(gate_[1]);
  }
  pid_t pid() const { return pid_; }
  // From then on its number is free.
  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  int gate_[2];
  pid_t pid_ = 0;
};

// A process that does nothing and has this number; -1: it may not be chosen.
pid_t ForkAs(pid_t pid) {
  clone_args arguments = {};
  arguments.exit_signal = SIGCHLD;
  arguments.set_tid = reinterpret_cast<uint64_t>(&pid);
  arguments.set_tid_size = 1;
  const long child = syscall(SYS_clone3, &arguments, sizeof arguments);
  if (child == 0) {
    while (true) pause();
  }
  return static_cast<pid_t>(child);
}

// Whether the system tells which process connected, and not its number alone.
bool PeersAreKnown() {
  int ends[2];
  PT_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  int process = -1;
  socklen_t size = sizeof process;
  const bool known =
      getsockopt(ends[0], SOL_SOCKET, SO_PEERPIDFD, &process, &size) == 0;
  for (const int fd : {ends[0], ends[1], process}) close(fd);
  return known;
}

TEST_F(UdsTest, DeadTrainerIsSeenThoughItsChildHoldsTheSocket) {
  TrainerWithChild trainer(options_.socket_path);
  ASSERT_TRUE(RunUntil([&] { return !events_.hellos.empty(); }));
  trainer.Kill();
  EXPECT_TRUE(RunUntil([&] { return !events_.gone.empty(); }));
  EXPECT_THAT(events_.gone.at(0),
              HasSubstr(absl::StrCat("ended (process ", trainer.pid())));
}

TEST_F(UdsTest, OneThatIsDeadBeforeItIsAcceptedIsSeenToo) {
  TrainerWithChild trainer(options_.socket_path);
  trainer.Kill();
  EXPECT_TRUE(RunUntil([&] { return !events_.gone.empty(); }));
  EXPECT_EQ(events_.hellos.size(), 1u);
  EXPECT_THAT(events_.gone.at(0),
              HasSubstr(absl::StrCat("ended (process ", trainer.pid())));
}

// A stranger gets a dead trainer's number before the agent looks: once the
// trainer is attached, and before it is accepted.
TEST_F(UdsTest, sec_uds_pid_reuse) {
  for (const bool attached : {true, false}) {
    if (!attached && !PeersAreKnown()) continue;
    TrainerWithChild trainer(options_.socket_path);
    const size_t before = events_.gone.size();
    if (attached) {
      ASSERT_TRUE(RunUntil([&] { return !events_.hellos.empty(); }));
    }
    trainer.Kill();
    const pid_t stranger = ForkAs(trainer.pid());
    if (stranger < 0) GTEST_SKIP() << "needs to be root to choose a number";
    EXPECT_EQ(stranger, trainer.pid());
    EXPECT_TRUE(RunUntil([&] { return events_.gone.size() > before; }));
    EXPECT_THAT(events_.gone.back(),
                HasSubstr(absl::StrCat("ended (process ", stranger)));
    kill(stranger, SIGKILL);
    waitpid(stranger, nullptr, 0);
  }
}

}  // namespace
}  // namespace pactrain::agent
