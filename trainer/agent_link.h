// The Unix socket to the agent on this node: packets out, packets and file
// descriptors in.
//
// Invariants: nothing here blocks except Connect() and Poll(), each within its
// bound; at most kMaxQueued packets wait for the agent to read; no SIGPIPE.
//
// Thread-compatible, except Wake() and Poll(), which may run at the same time
// as anything else.
#ifndef PACTRAIN_TRAINER_AGENT_LINK_H_
#define PACTRAIN_TRAINER_AGENT_LINK_H_

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "trainer/core/error.h"
#include "trainer/wire.h"

namespace pactrain::trainer {

class AgentLink {
 public:
  static constexpr size_t kMaxQueued = 16384;

  struct Packet {
    std::vector<char> bytes;
    std::vector<base::Fd> fds;
  };
  enum class Received { kPacket, kNothing, kClosed };

  // `address`: "unix:/path" or "/path". Waits at most `timeout` for an agent
  // whose queue of new connections is full.
  //   kInvalidArgument: not such an address, or longer than a socket's may be.
  //   kAgentUnresponsive: nobody there, with the path, why, and what to do.
  //   kRefused: somebody else than root, this user or the owner of its folder
  //   may serve it (base/safe_folders.h).
  Error Connect(const std::string& address, std::chrono::nanoseconds timeout);

  // Sends, or queues what the agent has no room for yet; false: the socket is
  // broken or too much is queued.
  bool Send(const void* message, size_t bytes);
  template <typename Message>
  bool Send(const Message& message) {
    return Send(&message, sizeof(message));
  }
  // Sends what is queued as far as there is room; false: the socket is broken.
  bool Flush();
  bool has_queued() const { return !queued_.empty(); }
  // Of the socket, once connected.
  const std::string& path() const { return path_; }

  Received Receive(Packet* packet);

  // Returns when a packet may be there, when Wake() was called, when there is
  // room to send if `for_room`, or after `timeout` (none: not before one of the
  // others).
  void Poll(bool for_room, std::optional<std::chrono::nanoseconds> timeout);
  void Wake();

 private:
  // False: not sent for lack of room (`*broken` false) or at all.
  bool SendNow(const void* message, size_t bytes, bool* broken);

  std::string path_;
  base::Fd socket_;
  base::Fd wake_;  // eventfd.
  std::deque<std::vector<char>> queued_;
  std::vector<char> buffer_;
};

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_AGENT_LINK_H_
