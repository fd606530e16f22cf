// Who may use an agent's socket, and what tells that a trainer is gone: the
// process itself, not its number or whoever holds its end of the socket.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstddef>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/local/own_file.h"
#include "agent/local/test_local_server.h"
#include "base/check.h"
#include "base/log_capture.h"

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
  const base::Fd read_end(ends[0]);
  trainer.SendWithDescriptor(PacketOf(MakeHello()), base::Fd(ends[1]));
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

// From now on getsockopt(SO_PEERCRED) of this process fails, as under a
// container's filter of system calls.
void ForbidPeerCredentials() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SO_PEERCRED, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {std::size(filter), filter};
  PT_CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  PT_CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

// Attack 15: it was let in as uid 0.
TEST_F(UdsTest, sec_uds_who_is_not_told_is_refused) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    io_.notify_fork(asio::io_context::fork_child);
    ForbidPeerCredentials();
    RawTrainer trainer = Connect();
    trainer.SendBytes(PacketOf(MakeHello()));
    wire::Failed failed = {};
    RunUntil([&] { return trainer.Receive(&failed, sizeof failed) > 0; });
    const bool refused = absl::StrContains(failed.text, "so nobody is let in");
    _exit(refused && events_.hellos.empty() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(UdsTest, SecAFolderAboveThatOthersMayWriteIsRefused) {
  server_.reset();
  ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
  EXPECT_THAT(LocalServer::Start(io_, options_, &events_),
              base::StatusIs(absl::StatusCode::kFailedPrecondition,
                             HasSubstr("others may write in " + directory_)));
}

// In a shared folder others can make what an agent reads when it starts.
TEST_F(UdsTest, sec_WhatIsNoFileOfOursIsNeitherReadNorWaitedFor) {
  const std::string fifo = absl::StrCat(directory_, "/run/agent.sock.audit");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    base::LogCapture log;
    const bool empty = ReadOwnFile(fifo, 1000).empty();
    _exit(empty && log.Has(fifo + " is not used") ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "it waits for somebody who writes";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(unlink(fifo.c_str()), 0);
  base::LogCapture log;
  EXPECT_EQ(ReadOwnFile(fifo, 1000), "");
  EXPECT_EQ(log.text(), "");  // That none is there is as usual.
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
