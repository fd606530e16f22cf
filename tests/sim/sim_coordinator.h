// The coordinator process: the real CoordinatorState over a journal that
// survives crashes and streams that do not.
#ifndef PACTRAIN_TESTS_SIM_SIM_COORDINATOR_H_
#define PACTRAIN_TESTS_SIM_SIM_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "coordinator/core/coordinator_state.h"
#include "tests/sim/mutant.h"
#include "tests/sim/world.h"

namespace pactrain::sim {

// The agent's end of a stream.
class StreamClient {
 public:
  virtual ~StreamClient() = default;
  virtual const std::string& name() const = 0;
  virtual void OnStreamMessage(uint64_t stream,
                               const protocol::CoordinatorMessage& message) = 0;
  virtual void OnStreamClosed(uint64_t stream, const std::string& reason) = 0;
};

class SimCoordinator {
 public:
  SimCoordinator(World* world, const coordinator::Options& options,
                 Mutant mutant);

  // What becomes durable, and who is refused, before any agent hears of it.
  struct Watcher {
    std::function<void(const protocol::Generation&)> formed;
    std::function<void(const protocol::JoinRefused&)> refused;
  };
  void Watch(Watcher watcher) { watcher_ = std::move(watcher); }

  void Start();
  void Crash();
  // At the next generation that goes on with a state: it is in the journal, and
  // no agent hears of it. `then` breaks more.
  void LoseNextGeneration(
      std::function<void(const protocol::Generation&)> then) {
    lose_ = std::move(then);
  }
  // As by SIGSTOP and SIGCONT.
  void Stop(absl::Duration time);
  // Its state directory is replaced by an older copy for a while, until
  // somebody puts the right one back. False: there is no copy.
  bool Restore(absl::Duration down, absl::Duration time);
  bool alive() const { return state_.has_value(); }
  // Of the job's that the journal has; null: none.
  const protocol::Generation* Newest() const;
  // This process has formed it, or found it to be the newest.
  bool Knows(uint64_t generation) const { return known_.contains(generation); }
  // Somebody has yet to put the right copy back.
  bool restored() const { return restored_; }
  // The journal cannot be written for a while.
  void FillDisk(absl::Duration time);
  // An operator's word; not heard while it is down or read-only.
  void SetPin(const protocol::GroupId& group,
              const std::optional<coordinator::Pin>& pin);
  // As `pactrain-admin forget`; refused while a rank of it is in sight.
  void Forget(const std::string& job);
  // As `pactrain-admin evict` of an agent that is made anew and readmitted.
  void Expel(const std::string& agent);

  // 0: nobody listens.
  uint64_t Connect(StreamClient* client);
  void Send(uint64_t stream, protocol::AgentMessage message);
  // The stream breaks; both ends learn of it in their own time.
  void Break(uint64_t stream);

 private:
  struct Stream {
    StreamClient* client = nullptr;
    Lane to_agent;
    Lane to_coordinator;
  };

  void Tick(uint64_t life);
  void Hear(uint64_t stream, const protocol::AgentMessage& message);
  void HearBroken(uint64_t stream, uint64_t life);
  void Carry(coordinator::Effects effects);
  void CloseClientEnd(uint64_t stream, const std::string& reason);
  absl::Duration Delay();
  bool stopped() const { return world_->now() < stopped_until_; }
  void WhenOn(std::function<void()> what);
  bool IsLost(const coordinator::Effects& effects);

  // The state directory.
  struct Directory {
    coordinator::Recovered journal;
    coordinator::History history;
    uint64_t term = 0;
  };

  World* const world_;
  const coordinator::Options options_;
  const Mutant mutant_;
  Directory directory_;  // Durable.
  std::optional<Directory> copy_;
  bool restored_ = false;
  absl::Duration stopped_until_;
  Watcher watcher_;
  std::function<void(const protocol::Generation&)> lose_;
  uint64_t life_ = 0;  // Also makes the id of each opening.
  bool disk_full_ = false;
  std::set<uint64_t> known_;
  std::optional<coordinator::CoordinatorState> state_;
  uint64_t next_stream_ = 1;
  std::map<uint64_t, Stream> streams_;
};

}  // namespace pactrain::sim

#endif  // PACTRAIN_TESTS_SIM_SIM_COORDINATOR_H_
