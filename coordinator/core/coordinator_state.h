// Everything the coordinator decides: who trains together (generations), what
// travels (decisions) and along which plan, for all groups of all jobs.
//
// Rules:
//   - Terms, generation numbers and decision versions only go up.
//   - A group's first generation is formed from all ranks of one launch, and
//     only when no trainer of an earlier job of that name can still be there.
//     Where ranks come and go the next ones are formed as lineup.h says.
//   - Where ranks come and go a generation without a donor begins a new
//   lineage,
//     and only when every rank that may hold a state of the last one is known
//     to be gone, unless it is replaced or forgotten on purpose. That is
//     durable before the new one begins, and who comes back is refused.
//   - A running generation ends only when one of its trainers leaves, when one
//     of its members says that it cannot go on, when one of its agents comes
//     back as another process, is expelled or drained, or when newcomers join
//     it; a broken stream ends nothing, and as long as one of its members is
//     out of sight no newcomer does.
//   - Soft state (streams, joins, votes, reports) is rebuilt from what agents
//     say after Hello; what `records` name survives a restart.
//   - What an agent has of trainers comes as state (LocalTrainers). What it
//     changes follows from what is recorded here of their seats; an older one,
//     or the same again, changes nothing.
//   - Before an agent is told of a record it is told its place in the journal's
//     history. A place that the journal does not hold shows an older copy of
//     it: from then on nothing is formed or decided, and all agents are refused
//     in words.
//   - Groups do not influence each other, but for places: a new one may take
//     that of one that has ended, of the agent that holds most such, or of a
//     job that was never formed.
//
// Pure: no I/O, clock, threads or logging. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_COORDINATOR_STATE_H_
#define PACTRAIN_COORDINATOR_CORE_COORDINATOR_STATE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/agents.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/group.h"
#include "coordinator/core/history.h"
#include "coordinator/core/journal_record.h"
#include "coordinator/core/options.h"
#include "coordinator/core/snapshot.h"
#include "protocol/control.h"

namespace pactrain::coordinator {

class CoordinatorState {
 public:
  struct Identity {
    std::string cluster_id;  // 32 hex digits, made once per state directory.
    uint64_t term = 0;       // Of this run, durable; >= 1.
    History history = {};    // Of the journal.
    // No generation that is formed has a lower number: a backup was restored,
    // and those were given out perhaps.
    uint64_t first_generation = 1;
    absl::Time epoch = absl::UnixEpoch();  // When `now` was 0.
    // Of this software: agents of a release that is far from it are refused.
    // Empty: not compared.
    std::string version = {};
  };
  // Takes up where `recovered` ends. `now` is monotonic time since any start.
  // InvalidArgument: an option is out of range, or the links are not one tree.
  static absl::StatusOr<CoordinatorState> Create(const Options& options,
                                                 const Identity& identity,
                                                 const Recovered& recovered,
                                                 absl::Duration now);

  // A message from an agent, already checked against limits.h. The first of a
  // stream must be AgentHello; anything wrong with it closes the stream.
  Effects OnMessage(StreamId stream, const protocol::AgentMessage& message,
                    absl::Duration now);
  // The stream is gone; unknown streams (closed by an effect before) are
  // ignored.
  Effects OnStreamClosed(StreamId stream, const std::string& reason,
                         absl::Duration now);
  // To be called at least every heartbeat interval.
  Effects Tick(absl::Duration now);

  // While read-only (the journal cannot be written) no effects hold records:
  // nothing is formed, decided or ended; running generations go on.
  void SetReadOnly(bool read_only) { read_only_ = read_only; }

  // Nothing: the policy decides again.
  //   NotFound:          no such group, or it never had a generation.
  //   InvalidArgument:   CheckPin() of it.
  //   ResourceExhausted: there are kMaxPinned.
  //   Unavailable:       the journal cannot be written.
  absl::StatusOr<Effects> SetPin(const protocol::GroupId& group,
                                 const std::optional<Pin>& pin,
                                 absl::Duration now);
  // Ends the lineage of all models of the job.
  //   NotFound:           no such job, or it never had a generation.
  //   FailedPrecondition: a rank of it is in sight.
  //   Unavailable:        the journal cannot be written.
  absl::StatusOr<Effects> Forget(const std::string& job, const std::string& by,
                                 absl::Duration now);
  // Agents with trainers in a job, or that wait for one.
  struct Participant {
    protocol::GroupId group;
    std::string agent, site;
  };
  std::vector<Participant> Participants() const;
  // The agent's trainers are out of `job`, or of all jobs, for good:
  // generations that they are of end, and the others go on as if they had left.
  // Its stream is closed.
  Effects Expel(const std::string& agent, const std::optional<std::string>& job,
                const std::string& reason, absl::Duration now);
  // Whom this rule of a deny list means may do nothing from now on: agents by
  // name leave at once, as by Expel().
  //   InvalidArgument:   CheckDenial() of it.
  //   ResourceExhausted: there are kMaxDenied.
  //   Unavailable:       the journal cannot be written.
  struct Evicted {
    // As policies call them: agents that are known by now, and of these whom
    // the rule means by name.
    std::set<std::string> known, meant;
    Effects effects;
  };
  absl::StatusOr<Evicted> Evict(const std::string& rule, const std::string& by,
                                absl::Duration now);
  // Takes that back. NotFound: nobody said so. Unavailable: as above.
  absl::StatusOr<Effects> Readmit(const std::string& who);
  // The agent's trainers are out of their jobs, and it takes no new ones until
  // it is started again or undrained. The others go on as if those had left in
  // order. Returns whose jobs.
  //   NotFound:           no such agent is there.
  //   FailedPrecondition: it would end a job, and `force` is not said.
  //   ResourceExhausted:  there are kMaxDenied.
  //   Unavailable:        the journal cannot be written.
  struct Drained {
    std::vector<std::string> jobs;
    Effects effects;
  };
  absl::StatusOr<Drained> Drain(const std::string& agent, const std::string& by,
                                bool force, absl::Duration now);
  // Takes that back. NotFound: it is not drained. Unavailable: as above.
  absl::StatusOr<Effects> Undrain(const std::string& agent);
  static constexpr size_t kMaxDenied = 1000;
  // Live jobs that are one agent's alone, so that no single one fills up a
  // coordinator.
  static constexpr int kMaxJobsOfAgent = protocol::kMaxJobs / 2;
  // Groups that are idle. Those that are not have places of their own: of each
  // live job as many as it may have models.
  static constexpr size_t kMaxRemembered =
      static_cast<size_t>(protocol::kMaxJobs) * protocol::kMaxModels;
  // Of all groups: these never give way, so that the others have a place.
  static constexpr size_t kMaxPinned = kMaxRemembered / 2;
  // For which trainers of a job may wait that was never formed: the longest
  // that PACTRAIN_ATTACH_TIMEOUT lets them.
  static constexpr absl::Duration kMaxWait = absl::Hours(24);
  const std::map<std::string, IdentityDenied>& denied() const {
    return denied_;
  }
  StateSnapshot Snapshot(absl::Duration now) const;
  // Trainers of the agent's `local` that would begin to wait.
  size_t CountNew(const std::string& agent,
                  const protocol::LocalTrainers& local,
                  absl::Duration now) const;
  // An agent that was told that a trainer is refused names it until it hears
  // that, at most for so long.
  static constexpr absl::Duration kRefusalOnItsWay = absl::Seconds(5);

 private:
  CoordinatorState(const Options& options, const Identity& identity,
                   absl::Duration now);

  Group::Context MakeContext(absl::Duration now, Effects& effects) const;
  absl::Status CheckHello(const protocol::AgentHello& hello) const;
  // For the log: one that is let in is not of this coordinator's release.
  void NoteRelease(const protocol::AgentHello& hello, Effects& effects) const;
  // Whether the journal holds what the agent was told.
  absl::Status CheckHistory(const protocol::AgentHello& hello,
                            absl::Duration now, Effects& effects);
  // Its records will be a place in the history: tells the agents. Notes whom
  // it refuses, if anybody.
  Effects Told(Effects effects, absl::Duration now);
  bool read_only() const { return read_only_ || !stale_.empty(); }
  void OnHello(StreamId stream, const protocol::AgentHello& hello,
               absl::Duration now, Effects& effects);
  void OnLocalTrainers(const Agent& agent, const protocol::LocalTrainers& local,
                       Group::Context& c);
  // Whether this agent is being told so: the trainer is not looked at again.
  bool WasRefused(StreamId stream, const protocol::LocalTrainers& local,
                  const protocol::TrainerJoined& joined,
                  absl::Duration now) const;
  void NoteRefused(const Effects& effects, absl::Duration now);
  // Those of it that the agent names no more.
  void ForgetRefused(StreamId stream, const protocol::LocalTrainers& local);
  // Null: no such group.
  Group* FindGroup(const protocol::GroupId& id);
  // Lets a new group in of a trainer at `agent`; may forget one that has ended,
  // or turn a job away (MakeRoomForJob()). Of kMaxRemembered the oldest gives
  // way of the agent that holds most, and none that is pinned.
  // ResourceExhausted: too many live jobs, or all that ended are pinned.
  // Unavailable: read-only.
  absl::Status MakeRoom(const protocol::GroupId& id, const std::string& agent,
                        Group::Context& c);
  // The same for one more live job. Where all places are taken the agent gives
  // one up that alone holds most of those that have never been formed.
  absl::Status MakeRoomForJob(const std::string& job, const std::string& agent,
                              Group::Context& c);
  // Of a job none of whose models was ever formed: nobody gets in.
  void TurnAway(const std::string& job, const std::string& reason,
                Group::Context& c);
  // ResourceExhausted: there are kMaxPinned.
  absl::Status CheckPinned() const;
  void ExpelFrom(const std::string& agent,
                 const std::optional<std::string>& job,
                 const std::string& reason, Group::Context& c);
  // Another process of this name was drained: that counts no more.
  void EndDrainOfEarlier(const Agent& agent, Effects& effects);
  // Why it takes no trainers; empty: it does.
  std::string WhyDrained(const Agent& agent) const;
  // Unavailable, FailedPrecondition: nothing can be made durable.
  absl::Status CheckWritable() const;
  // The agent of this stream has none any more.
  void Drop(StreamId stream, absl::Duration now, Effects& effects);

  Options options_;
  Identity identity_;
  bool read_only_ = false;
  std::string stale_;  // The journal is an older copy, in words.
  Agents agents_;
  std::map<protocol::GroupId, Group> groups_;
  std::map<std::string, IdentityDenied> denied_;
  std::map<std::string, AgentDrained> drained_;  // By name.
  // By attach; when.
  std::map<std::tuple<StreamId, protocol::GroupId, protocol::Digest>,
           absl::Duration>
      refused_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_COORDINATOR_STATE_H_
