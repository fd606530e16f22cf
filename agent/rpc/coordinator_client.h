// The agent's link to the coordinator: keeps one AgentStream open and says when
// there is one.
//
// A broken stream is opened anew with growing, jittered pauses, for ever; only
// the first connection is given up. The
// cluster of the first Welcome is the agent's for life. It remembers the newest
// place in the coordinator's history that it was told, and says it with each
// hello: a coordinator that does not hold it is on an older copy of its state
// directory, and refuses. In the same way it keeps where the coordinator's
// audit log ended, so that nobody can cut that unseen.
//
// Not thread-safe: used on the io_context's one thread; destroyed there after
// the io_context has stopped running. gRPC's threads only post into it.
#ifndef PACTRAIN_AGENT_RPC_COORDINATOR_CLIENT_H_
#define PACTRAIN_AGENT_RPC_COORDINATOR_CLIENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/rpc/agent_stream.h"
#include "agent/rpc/word_queue.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "base/tls/tls_files.h"
#include "protocol/control.h"

namespace pactrain::agent {

// Called from handlers of the io_context, never from within a call.
class CoordinatorEvents {
 public:
  virtual ~CoordinatorEvents() = default;
  // Its Welcome is accepted; OnCoordinatorMessage() with it follows.
  virtual void OnCoordinatorConnected() = 0;
  virtual void OnCoordinatorMessage(
      const protocol::CoordinatorMessage& message) = 0;
  // After a connection, and once more for every failed try with a new reason:
  // "coordinator 127.0.0.1:7070 cannot be reached (connection refused)".
  virtual void OnCoordinatorDisconnected(const std::string& reason) = 0;
  // There never was a connection, and trying on is of no use: it refused this
  // agent, or connect_timeout is over. Called once; nothing follows.
  virtual void OnCoordinatorGivenUp(const std::string& reason) = 0;
  // All that is kept of the audit log by now.
  virtual void OnAuditHeads(const protocol::KeptHeads&) {}
  // It is of another cluster than what was kept so far, which stays. Returns
  // what is kept of this one from before.
  virtual std::vector<protocol::AuditHead> OnAnotherCluster(
      const std::string&) {
    return {};
  }
};

class CoordinatorClient {
 public:
  struct Options {
    std::string address;  // "host:port"
    base::TlsFiles tls;   // Not given: plain text.
    // Sent first on every stream; cluster and history are filled in. `audit`:
    // what a former process of the agent kept.
    protocol::AgentHello hello;
    std::string audit_cluster;  // Whose that is.
    absl::Duration welcome_timeout = absl::Seconds(5);
    // For the first connection; may be infinite.
    absl::Duration connect_timeout = absl::Seconds(60);
    // How long another live agent of this name is waited for: it may be this
    // agent's dead predecessor.
    absl::Duration name_timeout = absl::Seconds(10);
    absl::Duration first_backoff = absl::Milliseconds(200);
    absl::Duration max_backoff = absl::Seconds(3);
  };

  // Starts to connect. `events` must outlive this.
  CoordinatorClient(asio::io_context& io, const Options& options,
                    CoordinatorEvents* events);
  ~CoordinatorClient();

  bool connected() const { return connected_; }
  // REQUIRES: connected(). What a broken stream has not sent is lost.
  void Send(protocol::AgentMessage message);
  // How many there are in this one's jobs, itself among them.
  void SetAgents(size_t agents) { words_.SetAgents(agents); }

  const std::string& cluster_id() const { return options_.hello.cluster_id; }

 private:
  struct Mailbox;  // Where gRPC's threads leave things; outlives this.

  void Connect();
  void OnMessage(uint64_t stream, const protocol::CoordinatorMessage& message);
  void OnDone(uint64_t stream, const absl::Status& status);
  // Why this coordinator is not ours.
  absl::Status CheckWelcome(const protocol::Welcome& welcome) const;
  // What is kept of its audit log is that of this cluster from then on.
  // Unavailable: it has to hear that first, in a hello.
  absl::Status TakeCluster(const protocol::Welcome& welcome);
  void OnWelcome(const protocol::Welcome& welcome);
  void OnMark(protocol::HistoryMark mark);
  void Keep(const protocol::AuditHead& head);
  // Gives up the stream for a reason of ours.
  void Abandon(const absl::Status& why);
  void Lost(const absl::Status& why);
  // For people; `was_connected`: up to now.
  std::string ReasonOf(const absl::Status& why, bool was_connected) const;
  // Without any connection so far: whether to try on.
  bool IsHopeless(const absl::Status& why, absl::Duration now) const;
  void HeartbeatLater();
  // What the pace lets through.
  void SendWaiting();
  void SendNow(const protocol::AgentMessage& message);

  asio::io_context& io_;
  Options options_;
  CoordinatorEvents* const events_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<AgentStream> stream_;  // Null between two tries.
  WordQueue words_;
  std::optional<absl::Duration> slow_since_;  // Some word has waited since.
  bool said_slow_ = false;                    // On this stream.
  // Where it is of the release before: what was said on the stream.
  bool takes_local_trainers_ = true;
  std::map<protocol::GroupId, protocol::LocalTrainers> said_;
  uint64_t stream_number_ = 0;
  protocol::AuditHead unsaid_;  // Kept since the last heartbeat.
  bool connected_ = false;
  absl::Duration heartbeat_interval_;
  absl::Duration backoff_;
  const absl::Duration started_;
  std::string last_reason_;
  std::string said_release_;  // The coordinator's, which the log has named.
  absl::Duration last_logged_;
  asio::steady_timer retry_timer_;
  asio::steady_timer welcome_timer_;
  asio::steady_timer heartbeat_timer_;
  asio::steady_timer word_timer_;
  std::mt19937_64 random_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_RPC_COORDINATOR_CLIENT_H_
