// The agent's event loop: turns what sockets tell into events of the core and
// carries out the core's effects.
//
// It decides nothing. Everything runs on the io_context's one thread, but for
// parts of long sums (Options::sum_threads).
#ifndef PACTRAIN_AGENT_DRIVER_H_
#define PACTRAIN_AGENT_DRIVER_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "agent/core/agent_state.h"
#include "agent/exchange/tcp/transport.h"
#include "agent/local/local_server.h"
#include "agent/local/memory_reserver.h"
#include "agent/local/memory_table.h"
#include "agent/local/trainer_book.h"
#include "agent/metrics/agent_metrics.h"
#include "agent/rpc/coordinator_client.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "base/crew.h"
#include "base/net.h"
#include "base/tls/tls_files.h"
#include "protocol/limits.h"

namespace pactrain::agent {

class Driver : private TransportEvents,
               private LocalEvents,
               private CoordinatorEvents {
 public:
  struct Options {
    agent::Options core;
    std::string socket_path;
    LocalAccess access;  // Who beside this user and root may use it.
    std::string listen = "127.0.0.1:0";  // Or a range, host:first-last.
    // "host", whose port is the one bound, "host:port" or "none": nobody can
    // dial this agent. Empty: what listen was bound to.
    std::string advertise_address;
    std::string coordinator;  // "host:port"
    // For the first connection to it; may be infinite.
    absl::Duration connect_timeout = absl::Seconds(60);
    EgressLimits egress;
    int connections_per_link = 1;  // As Transport::Options.
    // Of other agents at one address, beyond loopback.
    int connections_per_source = protocol::kMaxConnectionsPerSource;
    int sum_threads = 1;            // For the sums of one node's trainers.
    base::TlsFiles tls;             // Not given: plain text.
    bool insecure_network = false;  // For the metrics.
    // Where the driver publishes its numbers.
    std::shared_ptr<AgentMetrics> metrics =
        std::make_shared<AgentMetrics>(MetricsSnapshot());
    base::HostPort metrics_address = {};  // Where they are served.
  };

  // Opens both listeners and starts to connect to the coordinator.
  //   InvalidArgument: an option is out of range.
  //   others:          as Transport::Start() and LocalServer::Start().
  static absl::StatusOr<std::unique_ptr<Driver>> Start(asio::io_context& io,
                                                       const Options& options);

  std::string data_address() const { return transport_->listen_address(); }
  // What other agents are told: "host:port" or "none".
  std::string advertised_address() const;

  // Ends every trainer's session with an error, tells everybody who has to
  // know, and stops the io_context once that had time to leave.
  void Stop();
  // Why it stopped by itself; OK: it was told to.
  const absl::Status& error() const { return error_; }

 private:
  // `text`: for the trainers; its last line says what to do.
  void StopFor(const std::string& text);
  Driver(asio::io_context& io, const Options& options,
         std::unique_ptr<base::Crew> crew, std::unique_ptr<AgentState> state);
  absl::Status Open();
  void TickLater();
  MetricsSnapshot Snapshot() const;
  // What whoever reaches the data address asks for them; empty: he cannot.
  std::string MetricsAddress() const;

  void Handle(const Event& event);
  void RenewConnections();
  void Run(SetPeers& effect);
  void Run(SendPeerControl& effect);
  void Run(SendPeerData& effect);
  void Run(ClosePeer& effect);
  void Run(SendTrainer& effect);
  void Run(CloseTrainer& effect);
  void Run(SendCoordinator& effect);
  void Run(LogLine& effect);
  void AddLinks(protocol::StepReport& report) const;
  double SlowestLink() const;  // As in Tick.
  // Once its memory has its pages, or will not have them.
  void OnReserved(TrainerId trainer, const wire::Hello& hello,
                  const absl::Status& reserved);
  void Release(TrainerId trainer);
  void Book(TrainerId trainer, const wire::Hello& hello);
  void Leave(TrainerId trainer, const std::string& reason);
  // Ends a trainer that the core does not know or is about to be told of.
  void Fail(TrainerId trainer, wire::Code code, const std::string& text);

  // TransportEvents:
  void OnPeerConnected(const std::string& agent) override;
  void OnPeerDisconnected(const std::string& agent,
                          const absl::Status& why) override;
  void OnPeerData(const std::string& agent, Frame frame) override;
  void OnPeerControl(const std::string& agent,
                     const protocol::GroupControl& control) override;
  // LocalEvents:
  void OnHello(uint64_t trainer, const wire::Hello& hello) override;
  void OnMessage(uint64_t trainer, const Message& message) override;
  void OnTrainerGone(uint64_t trainer, const std::string& reason) override;
  wire::About OnAsk() override;
  // CoordinatorEvents:
  void OnCoordinatorConnected() override;
  void OnCoordinatorMessage(
      const protocol::CoordinatorMessage& message) override;
  void OnCoordinatorDisconnected(const std::string& reason) override;
  void OnCoordinatorGivenUp(const std::string& reason) override;
  void OnAuditHeads(const protocol::KeptHeads& kept) override;
  std::vector<protocol::AuditHead> OnAnotherCluster(
      const std::string& cluster) override;

  // Of the cluster that it is of; of another one that it was of.
  std::string AuditFile(const std::string& cluster = "") const {
    return options_.socket_path + ".audit" +
           (cluster.empty() ? "" : "." + cluster);
  }

  asio::io_context& io_;
  const Options options_;
  const std::unique_ptr<base::Crew> crew_;  // state_ uses it.
  const std::unique_ptr<AgentState> state_;
  const std::shared_ptr<AgentMetrics> metrics_;
  MemoryTable memory_;  // Outlives the core's use of it.
  MemoryReserver reserver_;
  std::set<TrainerId> waiting_;   // For their memory; the core knows nothing.
  std::set<TrainerId> trainers_;  // That the core knows.
  TrainerBook book_;              // Of those.
  bool warned_of_audit_ = false;  // That its file cannot be written.
  asio::steady_timer tick_timer_;
  asio::steady_timer stop_timer_;
  absl::Status error_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<LocalServer> local_;
  std::unique_ptr<CoordinatorClient> coordinator_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_DRIVER_H_
