#include "agent/local/trainer_link.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/local/processes.h"
#include "asio/post.hpp"
#include "base/check.h"
#include "trainer/wire.h"

namespace pactrain::agent {
namespace {

using asio::posix::stream_descriptor;

constexpr size_t kMaxDescriptors = 2;  // Slot and result.

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5; Debian 12's headers are older.
#endif

// The process that connected. Invalid, with ESRCH: it has ended already.
base::Fd OpenPeer(int socket, pid_t pid) {
  int process = -1;
  socklen_t size = sizeof process;
  // Its number may be another's by now.
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &process, &size) == 0) {
    return base::Fd(process);
  }
  if (errno == EINVAL) errno = ESRCH;  // As systems before 6.16 say it.
  if (errno == ESRCH) return base::Fd();
  // An older system has but the number. Debian 12's libc has no pidfd_open().
  return pid > 0 ? base::Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)))
                 : base::Fd();
}

}  // namespace

TrainerLink::TrainerLink(asio::io_context& io, uint64_t id, base::Fd socket,
                         pid_t pid, const Limits& limits,
                         TrainerLinkOwner* owner)
    : id_(id),
      pid_(pid),
      limits_(limits),
      owner_(owner),
      socket_(io, socket.Release()),
      process_(io),
      linger_timer_(io) {}

void TrainerLink::Start() {
  WatchProcess();
  WaitReadable();
}

void TrainerLink::WatchProcess() {
  base::Fd process = OpenPeer(socket_.native_handle(), pid_);
  const bool dead = !process.valid() && errno == ESRCH;
  if (process.valid()) {
    process_.assign(process.Release());
    AwaitEnd();
  } else if (dead) {
    asio::post(socket_.get_executor(),
               [self = shared_from_this()] { self->Ended(); });
  }
  // Else (another pid namespace) the socket alone tells.
}

void TrainerLink::AwaitEnd() {
  process_.async_wait(
      stream_descriptor::wait_read,
      [self = shared_from_this()](const asio::error_code& error) {
        if (error || self->state_ == State::kClosed) return;
        if (!HasEnded(self->process_.native_handle())) return self->AwaitEnd();
        self->Ended();
      });
}

void TrainerLink::Ended() {
  if (state_ == State::kClosed) return;
  while (ReadOne()) {
  }
  Gone(absl::StrCat("ended (process ", pid_, ")"));
}

void TrainerLink::Send(std::string packet,
                       std::vector<std::shared_ptr<SharedMemory>> memory) {
  if (state_ != State::kOpen) return;
  PT_CHECK(memory.size() <= kMaxDescriptors);
  if (unsent_.size() >= limits_.max_unsent) {
    // Posted: the owner is in the middle of something.
    asio::post(socket_.get_executor(), [self = shared_from_this()] {
      self->Gone(absl::StrCat("does not read what the agent sends (process ",
                              self->pid_, ")"));
    });
    return;
  }
  unsent_.push_back({std::move(packet), std::move(memory)});
  if (!waiting_writable_) Flush();
}

void TrainerLink::Close() {
  if (state_ != State::kOpen) return;
  state_ = State::kLingering;
  linger_timer_.expires_after(absl::ToChronoNanoseconds(limits_.linger));
  linger_timer_.async_wait(
      [self = shared_from_this()](const asio::error_code& error) {
        if (!error) self->Drop();
      });
  // Not close(): with packets of the trainer unread here, it would see a reset
  // instead of what we sent last.
  if (unsent_.empty()) shutdown(socket_.native_handle(), SHUT_WR);
}

void TrainerLink::Drop() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  const auto self = shared_from_this();  // The owner lets go of us.
  asio::error_code ignored;
  linger_timer_.cancel();
  socket_.close(ignored);
  process_.close(ignored);
  owner_->OnClosed(*this);
}

void TrainerLink::WaitReadable() {
  socket_.async_wait(
      stream_descriptor::wait_read,
      [self = shared_from_this()](const asio::error_code& error) {
        if (!error) self->OnReadable();
      });
}

void TrainerLink::OnReadable() {
  // One at a time: each may bring a piece to sum and encode, and between two of
  // them what is there already has to get on its way.
  ReadOne();
  if (state_ != State::kClosed) WaitReadable();
}

bool TrainerLink::ReadOne() {
  if (state_ == State::kClosed) return false;
  // One byte more than allowed, so that an oversized packet is seen as one.
  // No room for descriptors: the system closes any that a trainer sends.
  std::array<uint8_t, wire::kMaxMessage + 1> packet;
  const ssize_t bytes =
      recv(socket_.native_handle(), packet.data(), packet.size(), MSG_DONTWAIT);
  if (bytes > 0) {
    if (state_ == State::kOpen) {
      owner_->OnPacket(*this, absl::MakeConstSpan(packet.data(),
                                                  static_cast<size_t>(bytes)));
    }
    return true;
  }
  if (bytes < 0 && errno == EINTR) return true;
  if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  Gone(absl::StrCat("closed its connection (process ", pid_, ")"));
  return false;
}

void TrainerLink::Gone(const std::string& reason) {
  if (state_ == State::kClosed) return;
  const auto self = shared_from_this();
  if (state_ == State::kOpen) owner_->OnGone(*this, reason);
  Drop();
}

void TrainerLink::Flush() {
  while (!unsent_.empty() && SendOne(unsent_.front())) unsent_.pop_front();
  if (unsent_.empty()) {
    if (state_ == State::kLingering) {
      shutdown(socket_.native_handle(), SHUT_WR);
    }
    return;
  }
  waiting_writable_ = true;
  socket_.async_wait(
      stream_descriptor::wait_write,
      [self = shared_from_this()](const asio::error_code& error) {
        self->waiting_writable_ = false;
        if (!error && self->state_ != State::kClosed) self->Flush();
      });
}

bool TrainerLink::SendOne(const Unsent& unsent) {
  iovec part = {const_cast<char*>(unsent.packet.data()), unsent.packet.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))>
      control{};
  if (!unsent.memory.empty()) {
    const size_t bytes = unsent.memory.size() * sizeof(int);
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    for (size_t i = 0; i < unsent.memory.size(); ++i) {
      const int fd = unsent.memory[i]->fd();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  while (sendmsg(socket_.native_handle(), &message,
                 MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    // Any other error: the reading side sees the end and tells.
    return errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS;
  }
  return true;
}

}  // namespace pactrain::agent
