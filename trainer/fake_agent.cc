#include "trainer/fake_agent.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "gtest/gtest.h"

namespace pactrain::trainer {
namespace {

constexpr timeval kReceiveBound = {20, 0};

}  // namespace

FakeAgent::FakeAgent(std::function<void(FakeAgent&)> script) {
  // Not under TEST_TMPDIR: its paths are longer than a socket's may be.
  char directory[] = "/tmp/pactrain-test-XXXXXX";
  directory_ = mkdtemp(directory);
  path_ = directory_ + "/agent.sock";
  listener_ = base::Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path_.data(), path_.size());
  EXPECT_EQ(
      bind(listener_.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)),
      0);
  EXPECT_EQ(listen(listener_.get(), 4), 0);
  setsockopt(listener_.get(), SOL_SOCKET, SO_RCVTIMEO, &kReceiveBound,
             sizeof(kReceiveBound));
  thread_ = std::thread([this, script = std::move(script)] { script(*this); });
}

FakeAgent::~FakeAgent() {
  thread_.join();
  unlink(path_.c_str());
  rmdir(directory_.c_str());
  if (slot_ != nullptr) munmap(slot_, bytes_);
  if (result_ != nullptr) munmap(result_, bytes_);
}

wire::Hello FakeAgent::Accept() {
  trainer_ = base::Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(trainer_.valid());
  setsockopt(trainer_.get(), SOL_SOCKET, SO_RCVTIMEO, &kReceiveBound,
             sizeof(kReceiveBound));
  return Receive<wire::Hello>();
}

wire::Attached FakeAgent::AttachedFor(const wire::Hello& hello) {
  wire::Attached message = {};
  message.header = {wire::Kind::kAttached, sizeof(message)};
  message.rank = hello.rank;
  message.world_size = hello.world_size;
  message.donor = wire::kNoRank;
  message.generation = 3;
  message.lineage = kLineage;
  message.base_step = 7;
  message.slot_bytes = hello.slot_bytes;
  message.result_bytes = hello.slot_bytes;
  message.step_deadline_ms = 60000;
  message.decision.version = 1;
  message.decision.mode = 1;
  message.decision.codec = 1;
  std::strcpy(message.agent, "node-1");
  std::strcpy(message.site, "north");
  return message;
}

base::Fd FakeAgent::MakeMemory(uint64_t bytes, bool sealed) {
  base::Fd fd(memfd_create("pactrain-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  if (sealed) {
    EXPECT_EQ(
        fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
        0);
  }
  return fd;
}

void FakeAgent::SendAttached(const wire::Attached& message) {
  bytes_ = message.slot_bytes;
  const base::Fd slot = MakeMemory(bytes_, true);
  const base::Fd result = MakeMemory(bytes_, true);
  const auto map = [this](const base::Fd& fd) {
    return static_cast<uint8_t*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  };
  slot_ = map(slot);
  result_ = map(result);
  SendWithFds(message, {slot.get(), result.get()});
}

void FakeAgent::Attach() { SendAttached(AttachedFor(Accept())); }

void FakeAgent::SendWithFds(const wire::Attached& message,
                            const std::vector<int>& fds) {
  wire::Attached copy = message;
  iovec part = {&copy, sizeof(copy)};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  EXPECT_EQ(sendmsg(trainer_.get(), &header, MSG_NOSIGNAL),
            static_cast<ssize_t>(sizeof(copy)));
}

void FakeAgent::SendBytes(const void* data, size_t bytes) {
  EXPECT_EQ(send(trainer_.get(), data, bytes, MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes));
}

void FakeAgent::ReceiveBytes(void* data, size_t bytes) {
  // What masks keep is told beside all else: only who asks for it gets it.
  wire::Header next = {};
  while (bytes != sizeof(wire::Keep) &&
         recv(trainer_.get(), &next, sizeof(next), MSG_PEEK) > 0 &&
         next.kind == wire::Kind::kKeep) {
    recv(trainer_.get(), &next, sizeof(next), 0);
  }
  EXPECT_EQ(recv(trainer_.get(), data, bytes, 0), static_cast<ssize_t>(bytes));
}

bool FakeAgent::AtEnd() {
  char byte = 0;
  return recv(trainer_.get(), &byte, 1, 0) == 0;
}

std::vector<wire::Submit> FakeAgent::ReceiveStep() {
  std::vector<wire::Submit> submits;
  do {
    submits.push_back(Receive<wire::Submit>());
    EXPECT_EQ(submits.back().header.kind, wire::Kind::kSubmit);
  } while ((submits.back().last == 0 ||
            submits.back().filled < submits.back().elements) &&
           !::testing::Test::HasFailure());
  return submits;
}

void FakeAgent::Answer(const std::vector<wire::Submit>& submits, float factor) {
  for (const wire::Submit& s : submits) {
    for (uint64_t i = 0; i < s.elements; ++i) {
      result(s.offset)[i] = slot(s.offset)[i] * factor;
    }
  }
}

void FakeAgent::SendWaiting(const std::string& text) {
  wire::Waiting message = {};
  message.header = {wire::Kind::kWaiting, sizeof(message)};
  std::strncpy(message.text, text.c_str(), sizeof(message.text) - 1);
  Send(message);
}

void FakeAgent::SendResubmit(uint64_t step, uint32_t attempt) {
  wire::Resubmit message = {};
  message.header = {wire::Kind::kResubmit, sizeof(message)};
  message.step = step;
  message.attempt = attempt;
  Send(message);
}

void FakeAgent::SendWritten(const wire::Submit& last, uint64_t elements) {
  wire::Written message = {};
  message.header = {wire::Kind::kWritten, sizeof(message)};
  message.step = last.step;
  message.attempt = last.attempt;
  message.bucket = last.bucket;
  message.elements = elements;
  Send(message);
}

void FakeAgent::SendCommitted(const wire::Submit& last,
                              const wire::Decision& next) {
  wire::Committed message = {};
  message.header = {wire::Kind::kCommitted, sizeof(message)};
  message.step = last.step;
  message.attempt = last.attempt;
  message.world_size = 4;
  message.sent_bytes = 11;
  message.received_bytes = 12;
  message.dense_bytes = 13;
  message.link_rate = 1.5;
  message.next = next;
  Send(message);
}

void FakeAgent::SendFailed(uint64_t step, wire::Code code, bool final,
                           const std::string& text) {
  wire::Failed message = {};
  message.header = {wire::Kind::kFailed, sizeof(message)};
  message.step = step;
  message.code = code;
  message.final = final ? 1 : 0;
  std::strncpy(message.text, text.c_str(), sizeof(message.text) - 1);
  Send(message);
}

}  // namespace pactrain::trainer
