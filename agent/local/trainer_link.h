// The socket of one trainer: packets in, packets out, and its death.
//
// A trainer is gone when its process ends (a forked child of it may still hold
// the socket) or its socket closes. What it had sent before is read first.
//
// Not thread-safe: everything runs on the io_context's one thread. Handlers in
// flight share ownership.
#ifndef PACTRAIN_AGENT_LOCAL_TRAINER_LINK_H_
#define PACTRAIN_AGENT_LOCAL_TRAINER_LINK_H_

#include <sys/types.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "agent/local/shared_memory.h"
#include "asio/io_context.hpp"
#include "asio/posix/stream_descriptor.hpp"
#include "asio/steady_timer.hpp"
#include "base/fd.h"

namespace pactrain::agent {

class TrainerLink;

class TrainerLinkOwner {
 public:
  virtual ~TrainerLinkOwner() = default;
  virtual void OnPacket(TrainerLink& link,
                        absl::Span<const uint8_t> packet) = 0;
  // The trainer is gone or does not read; not told after Close(). `reason`
  // follows a name: "ended (process 17)".
  virtual void OnGone(TrainerLink& link, const std::string& reason) = 0;
  // Nothing more comes from this link.
  virtual void OnClosed(TrainerLink& link) = 0;
};

class TrainerLink : public std::enable_shared_from_this<TrainerLink> {
 public:
  struct Limits {
    absl::Duration linger = absl::Seconds(2);  // For what is unread at Close().
    size_t max_unsent = 256;                   // Packets.
  };

  // `socket` is a non-blocking SOCK_SEQPACKET; `pid` its peer, 0 if unknown.
  TrainerLink(asio::io_context& io, uint64_t id, base::Fd socket, pid_t pid,
              const Limits& limits, TrainerLinkOwner* owner);

  void Start();
  // Memory goes along as file descriptors.
  void Send(std::string packet,
            std::vector<std::shared_ptr<SharedMemory>> memory = {});
  // Nothing waits for the trainer to read.
  bool all_sent() const { return unsent_.empty(); }
  // Closes once what was sent has been read, at the latest after the linger
  // time.
  void Close();
  // Closes at once.
  void Drop();

  uint64_t id() const { return id_; }
  pid_t process() const { return pid_; }

 private:
  enum class State { kOpen, kLingering, kClosed };
  struct Unsent {
    std::string packet;
    std::vector<std::shared_ptr<SharedMemory>> memory;
  };

  void WatchProcess();
  void AwaitEnd();  // Of the process.
  void Ended();
  void WaitReadable();
  void OnReadable();
  // False when nothing more can be read now.
  bool ReadOne();
  void Flush();
  // False when the socket takes no more now.
  bool SendOne(const Unsent& unsent);
  void Gone(const std::string& reason);

  const uint64_t id_;
  const pid_t pid_;
  const Limits limits_;
  TrainerLinkOwner* const owner_;
  asio::posix::stream_descriptor socket_;
  asio::posix::stream_descriptor process_;
  asio::steady_timer linger_timer_;
  State state_ = State::kOpen;
  std::deque<Unsent> unsent_;
  bool waiting_writable_ = false;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_TRAINER_LINK_H_
