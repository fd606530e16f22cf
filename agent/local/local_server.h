// Where the trainers of this node come in: accepts them on the Unix socket and
// passes on what they say.
//
// Only whom LocalAccess names is let in. A trainer whose
// packets are malformed is told so and is gone; nobody else notices.
//
// Who has said no Hello yet keeps nobody out: where no place is left, the
// oldest such connection of the user who has most of them gives way
// (ConnectionPlaces). Who was refused has no place among the others. Trainers
// of another user beyond a budget wait for their turn.
//
// Not thread-safe: everything runs on the io_context's one thread; destroyed
// there after the io_context has stopped running.
#ifndef PACTRAIN_AGENT_LOCAL_LOCAL_SERVER_H_
#define PACTRAIN_AGENT_LOCAL_LOCAL_SERVER_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "agent/local/local_access.h"
#include "agent/local/packet.h"
#include "agent/local/socket_file.h"
#include "agent/local/trainer_link.h"
#include "base/clock.h"
#include "base/connection_places.h"
#include "base/identity_budgets.h"
#include "base/repeat_filter.h"
#include "protocol/limits.h"
#include "trainer/wire.h"

namespace pactrain::agent {

// Called from the server's handlers, never from within a call of its methods.
// Of a trainer come: one OnHello, messages, and OnTrainerGone unless the agent
// closed it before.
class LocalEvents {
 public:
  // TrainerPacket without those that come first.
  using Message =
      std::variant<wire::Submit, wire::Vote, protocol::KeepByParameter,
                   wire::DevicePath, wire::Detach, wire::CollectiveId,
                   wire::Opened, wire::Staged, wire::BucketWord,
                   wire::CollectiveFailed>;
  virtual ~LocalEvents() = default;
  virtual void OnHello(uint64_t trainer, const wire::Hello& hello) = 0;
  virtual void OnMessage(uint64_t trainer, const Message& message) = 0;
  virtual void OnTrainerGone(uint64_t trainer, const std::string& reason) = 0;
  // The answer to somebody who is no trainer and asks.
  virtual wire::About OnAsk() = 0;
};

class LocalServer : private TrainerLinkOwner {
 public:
  struct Options {
    std::string socket_path;
    LocalAccess access;
    // Until the Hello.
    absl::Duration handshake = absl::Seconds(protocol::kHandshakeSeconds);
    TrainerLink::Limits link;
    int max_connections = protocol::kMaxLocalConnections;
    std::function<absl::Duration()> now = base::MonotonicNow;
  };

  // Errors: as SocketFile::Listen().
  static absl::StatusOr<std::unique_ptr<LocalServer>> Start(
      asio::io_context& io, const Options& options, LocalEvents* events);
  ~LocalServer() override;

  // For a trainer that is gone all three do nothing.
  void Send(uint64_t trainer, std::string packet,
            std::vector<std::shared_ptr<SharedMemory>> memory = {});
  // Left out while the trainer does not read what was sent before: where a
  // later packet says more.
  void SendIfRead(uint64_t trainer, std::string packet);
  // After what was sent has been read, in a bounded time.
  void Close(uint64_t trainer);

  // Its process as this one numbers it; 0: it is gone or in no namespace here.
  pid_t ProcessOf(uint64_t trainer) const;
  // Lets nobody in any more and removes the socket file.
  void StopListening();
  // Connections, those in their handshake or being closed included.
  size_t open_count() const { return links_.size(); }
  // Connections that were refused, or gave way, so far.
  uint64_t refused() const { return refused_; }

 private:
  struct Entry {
    std::shared_ptr<TrainerLink> link;
    std::string user;           // "user 1001".
    bool another_user = false;  // Neither root nor the agent's own.
    base::ConnectionPlaces* places = nullptr;  // Where it has its place.
    base::ConnectionPlaces::Place place = 0;
    bool introduced = false;                    // Its Hello has come,
    bool waits = false;                         // but it is not its turn yet.
    std::unique_ptr<asio::steady_timer> timer;  // Of the handshake, of a turn.
  };

  LocalServer(asio::io_context& io, const Options& options, SocketFile file,
              LocalEvents* events);
  void WaitAccept();
  void AcceptAll();
  void Admit(base::Fd socket);
  // False: there is none, and nobody who could give way.
  bool TakePlace(Entry& entry, base::ConnectionPlaces& places);
  void OnGaveWay(const base::ConnectionPlaces& places,
                 const base::ConnectionPlaces::GaveWay& gave_way);
  // Tells the trainer and closes its link.
  void Refuse(Entry& entry, wire::Code code, const std::string& text);
  // Once in a while: who is refused may come back at once.
  void CountAndLog(const Entry& entry, const std::string& text);
  int TrainersOf(const std::string& user) const;
  // Passes the Hello on, now or as soon as it is the turn of its user.
  void PassOn(uint64_t trainer, const wire::Hello& hello);

  // TrainerLinkOwner:
  void OnPacket(TrainerLink& link, absl::Span<const uint8_t> packet) override;
  void OnGone(TrainerLink& link, const std::string& reason) override;
  void OnClosed(TrainerLink& link) override;
  // The packet's order or content is wrong.
  void OnBadPacket(TrainerLink& link, const std::string& what);

  asio::io_context& io_;
  const Options options_;
  SocketFile file_;
  LocalEvents* const events_;
  asio::posix::stream_descriptor acceptor_;
  asio::steady_timer accept_timer_;
  uint64_t next_id_ = 1;
  base::ConnectionPlaces places_;
  base::ConnectionPlaces refused_places_;  // While they read why.
  // By user, that the coordinator does not hold all at this agent against it.
  base::IdentityBudgets hellos_;
  uint64_t refused_ = 0;
  base::RepeatFilter told_;
  std::map<uint64_t, Entry> links_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_LOCAL_SERVER_H_
