// One agent process: the real AgentState, and a shell of plain memory and
// simulated connections around it.
#ifndef PACTRAIN_TESTS_SIM_SIM_AGENT_H_
#define PACTRAIN_TESTS_SIM_SIM_AGENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/core/agent_state.h"
#include "tests/sim/mutant.h"
#include "tests/sim/network.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/sim_trainer.h"
#include "tests/sim/world.h"

namespace pactrain::sim {

class SimAgent : public PeerEnd, public StreamClient {
 public:
  struct Options {
    std::string name;
    std::string site;
    absl::Duration step_deadline;
    absl::Duration straggler_timeout;
    Mutant mutant = Mutant::kNone;
  };
  SimAgent(World* world, Network* network, SimCoordinator* coordinator,
           const Options& options);

  void Start();
  void Crash();
  void BreakStream();
  // It says of a trainer what is not so. False: nobody hears it.
  bool Forge(const protocol::TrainerJoined& joined);
  // As a member that lies: for a while it says of its trainers' states, with
  // their own proofs, that they have come so many steps farther (or less far)
  // than they have; of 0 steps, other parameters, none, or others with a number
  // or a count of steps that is 1 more. `lied` hears of each.
  void Lie(int steps, absl::Duration time,
           std::function<void(const SimTrainer&)> lied);
  // How it lies of the parameters of this attach.
  enum class OfParameters { kOthers, kNone, kOtherNumber, kOtherCount };
  static OfParameters LieOf(const protocol::Digest& attach_id) {
    return static_cast<OfParameters>(attach_id.lo % 4);
  }
  // The coordinator cannot be reached, the peers can.
  void CutOff(absl::Duration time);
  // As by SIGSTOP and SIGCONT: what comes meanwhile is heard afterwards.
  void Stop(absl::Duration time);
  // For how long the coordinator has not had a stream of it that it answered.
  absl::Duration unheard_for() const {
    return welcomed_ && !stopped() ? absl::ZeroDuration() : now() - last_heard_;
  }

  // A trainer connects and says Hello. Returns its id, 0: nobody listens.
  agent::TrainerId Attach(SimTrainer* trainer);
  bool HasOtherLaunch(const std::string& launch) const;
  void FromTrainer(agent::TrainerId id, const SimTrainer::ToAgent& message);
  void TrainerDied(agent::TrainerId id);

  // PeerEnd:
  bool alive() const override { return state_ != nullptr; }
  absl::Duration stopped_until() const override { return stopped_until_; }
  const std::string& name() const override { return options_.name; }
  base::Digest incarnation() const override { return {life_, 42}; }
  bool Wants(const PeerEnd& peer) const override;
  void OnPeerEvent(const agent::Event& event) override;
  // StreamClient:
  void OnStreamMessage(uint64_t stream,
                       const protocol::CoordinatorMessage& message) override;
  void OnStreamClosed(uint64_t stream, const std::string& reason) override;

 private:
  struct Connection {
    SimTrainer* trainer = nullptr;
    int number = 0;  // Of the trainer's connections.
    std::shared_ptr<Mapping> slot;
    std::shared_ptr<Mapping> result;
    Lane to_trainer;
    Lane to_agent;
    bool closed = false;      // By the core; forgotten when all is delivered.
    wire::Decision decision;  // As last told; for a mutant.
    uint32_t world_size = 0;
  };

  absl::Duration now() const { return world_->now(); }
  bool stopped() const { return now() < stopped_until_; }
  // `what` is done when it goes on.
  void WhenOn(std::function<void()> what);
  void Handle(const agent::Event& event);
  void Hear(agent::TrainerId id, const SimTrainer::ToAgent& message);
  void OnHello(agent::TrainerId id, const wire::Hello& hello);
  void Dial();
  void LoseStream(uint64_t stream, const std::string& reason);
  void TellFormer();
  void Tick(uint64_t life, int count);
  absl::Duration LocalDelay();

  void Do(const agent::SetPeers& effect);
  void Do(const agent::SendPeerControl& effect);
  void Do(const agent::SendPeerData& effect);
  void Do(const agent::ClosePeer& effect);
  void Do(const agent::SendTrainer& effect);
  void Do(const agent::CloseTrainer& effect);
  void Do(const agent::SendCoordinator& effect);
  void Do(const agent::LogLine& effect);
  bool lies() const { return alive() && now() < lies_until_; }
  wire::Hello Falsified(SimTrainer& trainer, wire::Hello hello) const;
  void Falsify(protocol::StepReport& report) const;
  void DeliverNow(const protocol::CommitVote& vote);

  World* const world_;
  Network* const network_;
  SimCoordinator* const coordinator_;
  const Options options_;
  uint64_t life_ = 0;  // Also makes the incarnation.
  std::unique_ptr<agent::AgentState> state_;
  uint64_t stream_ = 0;
  bool welcomed_ = false;      // On this stream.
  absl::Duration last_heard_;  // By the coordinator.
  absl::Duration cut_until_;
  absl::Duration stopped_until_;
  int lie_ = 0;
  absl::Duration lies_until_;
  std::function<void(const SimTrainer&)> lied_;
  protocol::HistoryMark history_;  // The newest that it was told.
  // As agent/local/trainer_book.h, by process: survives a crash.
  struct Booked {
    SimTrainer* trainer = nullptr;
    uint32_t rank = 0;
    protocol::Digest attach_id;
    uint64_t life = 0;  // In which it attached.
    uint64_t told = 0;  // In which it was told to be dead.
  };
  std::map<uint64_t, Booked> booked_;
  std::map<std::string, base::Digest> peers_;
  agent::TrainerId next_trainer_ = 1;
  std::map<agent::TrainerId, Connection> trainers_;
  std::map<std::string, std::weak_ptr<Mapping>> regions_;
  std::optional<protocol::CommitVote> last_vote_;
};

}  // namespace pactrain::sim

#endif  // PACTRAIN_TESTS_SIM_SIM_AGENT_H_
