#include "agent/local/local_server.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "agent/local/memory_table.h"
#include "agent/local/socket_file.h"
#include "agent/local/test_local_server.h"
#include "base/status_matchers.h"
#include "base/test_descriptors.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

using ::testing::HasSubstr;

using LocalServerTest = LocalServerFixture;

TEST_F(LocalServerTest, MemoryArrivesSealedAndSharedBothWays) {
  RawTrainer trainer = Attach();
  MemoryTable table;
  ASSERT_OK_AND_ASSIGN(const TrainerBuffers buffers,
                       table.Make(events_.hellos[0], "region", 8192));
  wire::Attached attached = {};
  attached.header = {wire::Kind::kAttached, sizeof(attached)};
  server_->Send(events_.hellos[0], PacketOf(attached),
                {buffers.slot, buffers.result});
  std::vector<base::Fd> fds;
  ASSERT_TRUE(RunUntil([&] {
    return trainer.Receive(&attached, sizeof attached, &fds) == sizeof attached;
  }));
  ASSERT_EQ(fds.size(), 2u);
  const int slot = fds[0].get(), result = fds[1].get();
  for (int fd : {slot, result}) {
    EXPECT_NE(ftruncate(fd, 0), 0);
    EXPECT_NE(ftruncate(fd, 1 << 20), 0);
    EXPECT_NE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
  }
  auto map = [](int fd, int protection) {
    return static_cast<uint8_t*>(
        mmap(nullptr, 8192, protection, MAP_SHARED, fd, 0));
  };
  uint8_t* slot_bytes = map(slot, PROT_READ | PROT_WRITE);
  ASSERT_NE(slot_bytes, MAP_FAILED);
  slot_bytes[8191] = 17;
  EXPECT_EQ(buffers.slot->bytes()[8191], 17);

  EXPECT_EQ(map(result, PROT_READ | PROT_WRITE), MAP_FAILED);
  EXPECT_LT(pwrite(result, "x", 1, 0), 0);
  const base::Fd again(
      open(absl::StrCat("/proc/self/fd/", result).c_str(), O_RDWR));
  EXPECT_EQ(map(again.get(), PROT_READ | PROT_WRITE), MAP_FAILED);
  uint8_t* result_bytes = map(result, PROT_READ);
  ASSERT_NE(result_bytes, MAP_FAILED);
  buffers.result->bytes()[0] = 23;
  EXPECT_EQ(result_bytes[0], 23);
  munmap(slot_bytes, 8192);
  munmap(result_bytes, 8192);
}

TEST_F(LocalServerTest, sec_shm_truncate) {
  ASSERT_OK_AND_ASSIGN(
      const auto slot,
      SharedMemory::Create("slot", 8192, SharedMemory::TrainerMay::kWrite));
  slot->bytes()[8191] = 17;
  // All that a trainer could do to it with the descriptor it gets.
  for (const off_t size : {0, 4096, 1 << 20}) {
    EXPECT_NE(ftruncate(slot->fd(), size), 0) << size;
  }
  EXPECT_NE(fcntl(slot->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_EQ(slot->bytes()[8191], 17);
}

TEST_F(LocalServerTest, MessagesComeInOrderAndEofIsTheEnd) {
  RawTrainer trainer = Attach();
  for (uint64_t step = 0; step < 50; ++step) {
    wire::Submit submit = {};
    submit.header = {wire::Kind::kSubmit, sizeof(submit)};
    submit.mode = submit.op = submit.dtype = 1;
    submit.step = step;
    trainer.Send(submit);
  }
  trainer.Close();
  ASSERT_TRUE(RunUntil([&] { return !events_.gone.empty(); }));
  ASSERT_EQ(events_.messages.size(), 50u);
  for (uint64_t step = 0; step < 50; ++step) {
    EXPECT_EQ(std::get<wire::Submit>(events_.messages[step]).step, step);
  }
  EXPECT_THAT(events_.gone[0], HasSubstr("closed its connection"));
  EXPECT_TRUE(RunUntil([&] { return server_->open_count() == 0; }));
}

TEST_F(LocalServerTest, OneMessageOfATrainerPerTurn) {
  // Each may be a piece to sum and encode: what others wait for comes between.
  constexpr int kEach = 20;
  std::vector<RawTrainer> trainers;
  for (int i = 0; i < 2; ++i) trainers.push_back(Attach());
  wire::Submit submit = {};
  submit.header = {wire::Kind::kSubmit, sizeof(submit)};
  submit.mode = submit.op = submit.dtype = 1;
  for (uint32_t i = 0; i < 2; ++i) {
    submit.bucket = i;
    for (int sent = 0; sent < kEach; ++sent) trainers[i].Send(submit);
  }
  ASSERT_TRUE(RunUntil([&] { return events_.messages.size() == 2 * kEach; }));
  for (int i = 1; i < 2 * kEach; ++i) {
    EXPECT_NE(std::get<wire::Submit>(events_.messages[i]).bucket,
              std::get<wire::Submit>(events_.messages[i - 1]).bucket)
        << i;
  }
}

TEST_F(LocalServerTest, MalformedPacketEndsOnlyThatTrainer) {
  RawTrainer good = Attach();
  RawTrainer bad = Attach();
  bad.SendBytes("this is no packet");
  const wire::Failed failed = ExpectFailed(bad);
  EXPECT_EQ(failed.code, wire::Code::kInvalidArgument);
  EXPECT_THAT(failed.text, HasSubstr("same release"));
  EXPECT_EQ(events_.gone.size(), 1u);
  good.Send(wire::Detach{{wire::Kind::kDetach, sizeof(wire::Detach)}});
  EXPECT_TRUE(RunUntil([&] { return events_.messages.size() == 1; }));
}

TEST_F(LocalServerTest, FirstPacketMustBeAHello) {
  RawTrainer trainer = Connect();
  trainer.Send(wire::Detach{{wire::Kind::kDetach, sizeof(wire::Detach)}});
  EXPECT_THAT(ExpectFailed(trainer).text, HasSubstr("no Hello came first"));
  EXPECT_TRUE(events_.gone.empty());  // It was never introduced.
}

TEST_F(LocalServerTest, WhoAsksIsToldAboutTheAgentAndIsNoTrainer) {
  RawTrainer asker(options_.socket_path);
  wire::Ask ask = {};
  ask.header = {wire::Kind::kAsk, sizeof(ask)};
  asker.Send(ask);
  wire::About about = {};
  ASSERT_TRUE(RunUntil(
      [&] { return asker.Receive(&about, sizeof about) == sizeof about; }));
  EXPECT_STREQ(about.agent, "node-1");
  asker.Close();
  EXPECT_TRUE(RunUntil([&] { return server_->open_count() == 0; }));
  EXPECT_TRUE(events_.hellos.empty());
  EXPECT_TRUE(events_.gone.empty());
}

TEST_F(LocalServerTest, ATrainerMayNotAsk) {
  RawTrainer trainer = Attach();
  wire::Ask ask = {};
  ask.header = {wire::Kind::kAsk, sizeof(ask)};
  trainer.Send(ask);
  EXPECT_TRUE(RunUntil([&] { return events_.gone.size() == 1; }));
}

TEST_F(LocalServerTest, OversizedPacketIsRefused) {
  RawTrainer trainer = Attach();
  trainer.SendBytes(std::string(wire::kMaxMessage + 1000, 'x'));
  EXPECT_THAT(ExpectFailed(trainer).text, HasSubstr("allowed are 8 to 8192"));
}

TEST_F(LocalServerTest, WhatWasSentBeforeCloseIsReadThoughTheTrainerTalksOn) {
  RawTrainer trainer = Attach();
  wire::Waiting waiting = {};
  waiting.header = {wire::Kind::kWaiting, sizeof(waiting)};
  for (int i = 0; i < 100; ++i) {
    server_->Send(events_.hellos[0], PacketOf(waiting));
  }
  server_->Close(events_.hellos[0]);
  trainer.Send(wire::Detach{{wire::Kind::kDetach, sizeof(wire::Detach)}});
  int received = 0;
  ssize_t bytes = -1;
  ASSERT_TRUE(RunUntil([&] {
    bytes = trainer.Receive(&waiting, sizeof waiting);
    if (bytes > 0) ++received;
    return bytes == 0;
  }));
  EXPECT_EQ(received, 100);
  EXPECT_TRUE(events_.messages.empty());
}

TEST_F(LocalServerTest, TrainerThatDoesNotReadIsGone) {
  RawTrainer trainer = Attach();
  wire::Waiting waiting = {};
  waiting.header = {wire::Kind::kWaiting, sizeof(waiting)};
  for (int i = 0; i < 2000; ++i) {
    server_->Send(events_.hellos[0], PacketOf(waiting));
  }
  EXPECT_TRUE(RunUntil([&] { return !events_.gone.empty(); }));
  EXPECT_THAT(events_.gone.at(0), HasSubstr("does not read"));
}

TEST_F(LocalServerTest, WhatMayBeLeftOutIsSentOnlyToWhoReads) {
  RawTrainer trainer = Attach();
  wire::Written written = {};
  written.header = {wire::Kind::kWritten, sizeof(written)};
  const auto send = [&](uint32_t first, uint32_t end) {
    for (written.bucket = first; written.bucket < end; ++written.bucket) {
      server_->SendIfRead(events_.hellos[0], PacketOf(written));
    }
  };
  wire::Written got = {};
  const auto receive = [&] {
    return trainer.Receive(&got, sizeof got) == sizeof got;
  };
  send(0, 5000);
  uint32_t received = 0;
  for (; receive(); ++received) EXPECT_EQ(got.bucket, received);
  EXPECT_GT(received, 0u);
  // One was on its way.
  EXPECT_TRUE(RunUntil(receive));
  EXPECT_EQ(got.bucket, received);
  EXPECT_LT(got.bucket, 4999u);
  send(5000, 5001);
  EXPECT_TRUE(RunUntil(receive));
  EXPECT_EQ(got.bucket, 5000u);
  EXPECT_TRUE(events_.gone.empty());
}

TEST_F(LocalServerTest, sec_limits_LocalConnections) {
  constexpr size_t kLimit = protocol::kMaxLocalConnections;
  base::AllowDescriptors(2 * kLimit + 200);
  std::vector<RawTrainer> attached;
  for (size_t i = 0; i < kLimit; ++i) attached.push_back(Attach());
  RawTrainer last = Connect();
  EXPECT_THAT(ExpectFailed(last).text,
              HasSubstr(absl::StrCat("trainers on all ", kLimit)));
  attached.pop_back();
  EXPECT_TRUE(RunUntil([&] { return server_->open_count() == kLimit - 1; }));
  Attach();  // The end of one makes room.
}

TEST_F(LocalServerTest, sec_limits_HandshakeSeconds) {
  EXPECT_EQ(options_.handshake, absl::Seconds(protocol::kHandshakeSeconds));
  server_.reset();
  options_.handshake = absl::Milliseconds(10);
  Start();
  RawTrainer silent = Connect();
  char byte;
  EXPECT_TRUE(RunUntil([&] { return silent.Receive(&byte, 1) == 0; }));
}

// In one turn asio hands out what can be read before timers that are over.
TEST_F(LocalServerTest, WhoSaysHelloAsItsTimeEndsIsIn) {
  server_.reset();
  options_.handshake = absl::ZeroDuration();
  Start();
  bool in = false;
  for (int tries = 0; tries < 100 && !in; ++tries) {
    const size_t before = events_.hellos.size();
    RawTrainer raw = Connect();
    raw.Send(MakeHello());
    ASSERT_TRUE(RunUntil([&] { return server_->open_count() == 1; }));
    RunUntil([&] {
      return events_.hellos.size() > before || server_->open_count() == 0;
    });
    if (events_.hellos.size() == before) continue;
    in = true;
    io_.poll();
    EXPECT_EQ(server_->open_count(), 1u);
  }
  EXPECT_TRUE(in);
}

TEST_F(LocalServerTest, SecondAgentOnTheSocketIsRefused) {
  EXPECT_THAT(LocalServer::Start(io_, options_, &events_),
              base::StatusIs(absl::StatusCode::kAlreadyExists,
                             HasSubstr("another agent listens")));
  EXPECT_TRUE(Connect().connected());
}

// asio may hand a new descriptor the event of one that was closed in the same
// turn; here the end of the first trainer's socket comes to the process of the
// second, since a link closes its socket first and asio gives out last what was
// closed first.
TEST_F(LocalServerTest, WhoComesWhileAnotherEndsIsNotTakenForIt) {
  RawTrainer first;
  const pid_t process = fork();
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    first.Connect(options_.socket_path);
    first.Send(MakeHello());
    while (true) pause();
  }
  ASSERT_TRUE(RunUntil([&] { return !events_.hellos.empty(); }));
  // All within one turn, in this order.
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
  RawTrainer second = Connect();
  first.Close();
  ASSERT_TRUE(RunUntil([&] { return !events_.gone.empty(); }));
  for (int turn = 0; turn < 10; ++turn) {
    io_.run_one_for(std::chrono::milliseconds(1));
  }
  second.Send(MakeHello());
  EXPECT_TRUE(RunUntil([&] { return events_.hellos.size() == 2; }));
  EXPECT_EQ(events_.gone.size(), 1u);
}

TEST_F(LocalServerTest, StaleSocketFileIsReplaced) {
  const pid_t agent = fork();
  if (agent == 0) {  // Dies without tidying up.
    server_->StopListening();
    asio::io_context io;
    auto stale = LocalServer::Start(io, options_, &events_);
    _exit(stale.ok() ? 0 : 1);
  }
  server_->StopListening();
  int status = 0;
  waitpid(agent, &status, 0);
  ASSERT_EQ(status, 0);
  ASSERT_FALSE(Connect().connected());
  server_.reset();
  Start();
  EXPECT_TRUE(Connect().connected());
}

TEST_F(LocalServerTest, AFileOfAnotherKindIsLeftAlone) {
  server_.reset();
  const base::Fd file(
      open(options_.socket_path.c_str(), O_CREAT | O_WRONLY, 0600));
  EXPECT_THAT(LocalServer::Start(io_, options_, &events_),
              base::StatusIs(absl::StatusCode::kFailedPrecondition,
                             HasSubstr("file of another kind")));
  EXPECT_EQ(unlink(options_.socket_path.c_str()), 0);
}

TEST_F(LocalServerTest, DirectoryThatOthersMayWriteIsRefused) {
  server_.reset();
  const std::string run = absl::StrCat(directory_, "/run");
  ASSERT_EQ(chmod(run.c_str(), 0777), 0);
  EXPECT_THAT(LocalServer::Start(io_, options_, &events_),
              base::StatusIs(absl::StatusCode::kFailedPrecondition,
                             HasSubstr("chmod 0700")));
}

TEST_F(LocalServerTest, sec_DirectoryOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs to be root to give it away";
  server_.reset();
  const std::string run = absl::StrCat(directory_, "/run");
  ASSERT_EQ(chown(run.c_str(), 65534, 65534), 0);
  EXPECT_THAT(LocalServer::Start(io_, options_, &events_),
              base::StatusIs(absl::StatusCode::kFailedPrecondition,
                             HasSubstr("is of user 65534")));
}

TEST_F(LocalServerTest, MissingDirectoriesAreMade) {
  const std::string path = absl::StrCat(directory_, "/new/below/agent.sock");
  ASSERT_OK(SocketFile::Listen(path));
  EXPECT_EQ(rmdir(absl::StrCat(directory_, "/new/below").c_str()), 0);
  EXPECT_EQ(rmdir(absl::StrCat(directory_, "/new").c_str()), 0);
}

TEST_F(LocalServerTest, InAStickyDirectoryTheSocketIsOursAloneStill) {
  const std::string shared = absl::StrCat(directory_, "/tmp");
  ASSERT_EQ(mkdir(shared.c_str(), 0700), 0);
  ASSERT_EQ(chmod(shared.c_str(), 01777), 0);
  {
    const auto file = SocketFile::Listen(absl::StrCat(shared, "/agent.sock"));
    ASSERT_OK(file);
    struct stat info = {};
    ASSERT_EQ(stat(file->path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  EXPECT_EQ(rmdir(shared.c_str()), 0);
}

TEST_F(LocalServerTest, SocketIsOursAloneAndGoesWithTheServer) {
  struct stat info = {};
  ASSERT_EQ(stat(options_.socket_path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(absl::StrCat(directory_, "/run").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  server_.reset();
  EXPECT_NE(stat(options_.socket_path.c_str(), &info), 0);
}

TEST(ParseSocketPath, TakesAbsolutePathsThatFit) {
  EXPECT_EQ(*ParseSocketPath("unix:/run/a.sock"), "/run/a.sock");
  EXPECT_EQ(*ParseSocketPath("/run/a.sock"), "/run/a.sock");
  for (const std::string& text :
       {std::string("run/a.sock"), std::string("unix:"), std::string("/run/"),
        "/" + std::string(108, 'x')}) {
    EXPECT_THAT(ParseSocketPath(text),
                base::StatusIs(absl::StatusCode::kInvalidArgument,
                               testing::StartsWith("'" + text + "' ")));
  }
}

}  // namespace
}  // namespace pactrain::agent
