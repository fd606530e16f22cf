// A coordinator's core with agents and trainers around it, for tests: every
// stream has an inbox, records go to a journal in memory, time is set by hand.
#ifndef PACTRAIN_COORDINATOR_CORE_TEST_CLUSTER_H_
#define PACTRAIN_COORDINATOR_CORE_TEST_CLUSTER_H_

#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "coordinator/core/coordinator_state.h"
#include "protocol/test_messages.h"

namespace pactrain::coordinator {

class TestCluster {
 public:
  explicit TestCluster(const Options& options = {});

  // Opens a stream for an agent of site `site`; a new process unless `same` is
  // set. Its earlier stream is not closed first.
  void Connect(const std::string& agent, const std::string& site,
               bool same_process = false);
  void Disconnect(const std::string& agent);
  // Everything soft is lost; term + 1. Streams are gone.
  void RestartCoordinator();
  // The state directory.
  struct Copy {
    Recovered journal;
    History history;
    uint64_t term = 0;
  };
  void BackUp() { copy_ = {journal_, history_, term_}; }
  // In place of the one that is there, which is returned; and restarts.
  Copy Restore() { return Restore(copy_); }
  Copy Restore(const Copy& copy);
  // The backup as `pactrain-coordinator --restore` makes a state directory of
  // it.
  void RestoreOnPurpose();
  void Advance(absl::Duration by);  // And ticks.
  // Seconds in which the named agents send heartbeats.
  void Pass(int seconds, const std::vector<std::string>& alive);

  // `rank` of `world` at `agent`; a new attach.
  void Join(const std::string& agent, uint32_t rank, uint32_t world,
            const std::string& launch = "run-1");
  void Rejoin(const std::string& agent, uint32_t rank, uint64_t generation);
  void Leave(const std::string& agent, uint32_t rank, const std::string& reason,
             bool generation_ended = false,
             const std::vector<std::string>& unreached = {},
             bool straggled = false);
  void Vote(const std::string& agent, uint32_t rank, uint64_t mask,
            uint32_t steps_unchanged = 1, bool inside = true,
            uint64_t layout = 1);
  void Answer(const std::string& agent, uint64_t version, bool accepted);
  void Report(const std::string& agent, uint64_t version, uint64_t count);
  void Say(const std::string& agent, const protocol::AgentMessage& message);
  // As a part of all that it has of trainers.
  template <typename T>
  requires(!std::is_convertible_v<T, protocol::AgentMessage>) void Say(
      const std::string& agent, const T& what) {
    Say(agent, protocol::AgentMessage(agents_.at(agent).local.With(what)));
  }
  // All that the agent has of the group's trainers.
  const protocol::LocalTrainers& LocalOf(const std::string& agent) const {
    return agents_.at(agent).local.by_group().at(group);
  }
  // It says nothing of them any more.
  void ForgetTrainers(const std::string& agent) {
    agents_.at(agent).local.Clear();
  }
  const protocol::Trainer& TrainerOf(const std::string& agent,
                                     uint32_t rank) const {
    return agents_.at(agent).trainers.at(rank);
  }
  void Act(Effects effects);

  // Two agents a (site x) and b (site y) with ranks 0, 1 and 2, 3, all joined.
  void FormFour();

  // The newest message of a kind that the agent got since the last Clear().
  template <typename T>
  std::optional<T> Got(const std::string& agent) const {
    const auto& inbox = inbox_.find(agent);
    if (inbox == inbox_.end()) return std::nullopt;
    for (auto it = inbox->second.rbegin(); it != inbox->second.rend(); ++it) {
      if (const T* m = std::get_if<T>(&*it)) return *m;
    }
    return std::nullopt;
  }
  void Pin(const std::optional<coordinator::Pin>& pin);
  void Clear() { inbox_.clear(), closed_.clear(), records_.clear(); }
  // Why the agent's newest stream was closed.
  absl::Status Closed(const std::string& agent) const;
  GroupSnapshot Snapshot() const { return state().Snapshot(now_).groups.at(0); }

  const CoordinatorState& state() const { return *state_; }
  CoordinatorState& state() { return *state_; }
  const Recovered& journal() const { return journal_; }
  const std::vector<JournalRecord>& records() const { return records_; }
  const std::vector<Effects::Alarm>& alarms() const { return alarms_; }
  absl::Duration now() const { return now_; }
  protocol::GroupId group{"job", 0};
  // Of the group's generation of this number; of one that was never formed
  // another one.
  protocol::Digest LineageOf(uint64_t generation) const;
  // What trainers say of themselves.
  uint64_t model = 7;
  uint64_t resume_step = 0;
  protocol::OnShrink on_shrink = protocol::OnShrink::kAbort;
  protocol::Declared declared;
  protocol::Onset onset;
  protocol::Lineage lineage;
  protocol::Digest parameters;
  bool again = false;  // A newcomer that was attached before.
  bool replace = false;
  uint64_t last_generation = 0;
  // As the shell finds it: what they claim is so.
  bool proven = true;
  base::Secret proof = {};  // That it was found of.
  bool proves = true;       // What agents say as they connect.

 private:
  void Start();

  Options options_;
  std::optional<CoordinatorState> state_;
  Recovered journal_;
  std::map<std::pair<protocol::GroupId, uint64_t>, protocol::Digest> lineages_;
  // The generation that an attach got its seat in.
  std::map<protocol::Digest, uint64_t> seated_;
  std::vector<JournalRecord> records_;  // Since the last Clear().
  std::vector<Effects::Alarm> alarms_;
  uint64_t term_ = 1;
  History history_;
  Copy copy_;
  protocol::Digest restored_;
  uint64_t first_generation_ = 1;
  uint64_t next_id_ = 1;
  StreamId next_stream_ = 1;
  absl::Duration now_ = absl::Seconds(1000);
  struct AgentProcess {
    std::string site;
    protocol::Digest incarnation;
    StreamId stream = 0;
    std::map<uint32_t, protocol::Trainer> trainers;
    protocol::HistoryMark history;  // The newest that it was told.
    protocol::TrainersOfAgent local;
  };
  std::map<std::string, AgentProcess> agents_;
  // By launch and rank.
  std::map<std::pair<std::string, uint32_t>, protocol::Digest> last_attach_ids_;
  std::map<std::string, std::vector<protocol::CoordinatorMessage>> inbox_;
  std::map<StreamId, absl::Status> closed_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_TEST_CLUSTER_H_
