// One group: its waiting trainers, its generation and its decisions.
//
// Rules: as in coordinator_state.h. While `read_only` nothing is formed,
// decided or ended; what was due is done when the journal can be written again.
//
// Pure. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_GROUP_H_
#define PACTRAIN_COORDINATOR_CORE_GROUP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "coordinator/core/account.h"
#include "coordinator/core/agents.h"
#include "coordinator/core/decisions.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/journal_record.h"
#include "coordinator/core/lineup.h"
#include "coordinator/core/mask_votes.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/norm_watch.h"
#include "coordinator/core/options.h"
#include "coordinator/core/policy.h"
#include "coordinator/core/progress.h"
#include "coordinator/core/reach.h"
#include "coordinator/core/seats.h"
#include "coordinator/core/snapshot.h"
#include "coordinator/core/testimony.h"
#include "protocol/control.h"

namespace pactrain::coordinator {

class Group {
 public:
  // What surrounds one step of the core.
  struct Context {
    const Options& options;
    const Agents& agents;
    uint64_t term = 0;
    bool read_only = false;
    absl::Duration now;
    Effects& effects;
    absl::Time epoch;  // When `now` was 0.
    uint64_t first_generation = 1;

    std::string TimeText(absl::Duration at) const;  // UTC, to the second.
  };

  Group(const protocol::GroupId& id, const Options& options,
        absl::Duration now = absl::ZeroDuration());
  Group(const protocol::GroupId& id, const Options& options,
        const Recovered::Group& recovered, absl::Duration now);

  // The agent's word about its trainers: what of it is not so here yet becomes
  // so. What no longer fits (an older generation, a trainer that left) is
  // answered with what the agent missed. Who is not taken was refused, and is
  // only named.
  using Takes = absl::FunctionRef<bool(const protocol::TrainerJoined&)>;
  void OnLocalTrainers(const Agent& agent, const protocol::LocalTrainers& local,
                       Takes takes, Context& c);
  // Whether `joined`, of the agent's `local`, would begin to wait.
  bool IsNew(const Agent& agent, const protocol::LocalTrainers& local,
             const protocol::TrainerJoined& joined) const;
  void OnAnswer(const Agent& agent, const protocol::PrepareAnswer& answer,
                Context& c);
  void OnReport(const Agent& agent, const protocol::StepReport& report,
                Context& c);

  // The agent opened a stream, maybe as another process than before.
  void OnAgentConnected(const Agent& agent, Context& c);
  void OnAgentDisconnected(const Agent& agent, absl::Duration now);
  void Tick(Context& c);

  // Its trainers of the newest generation are out for good, whoever speaks for
  // them: that ends if it runs. Who waits there is refused.
  void Expel(const std::string& agent, const std::string& reason, Context& c);

  // Trainers of the agent, by rank, that it would take from the running
  // generation; `ends`: the others could not go on without them.
  struct Share {
    size_t trainers = 0;
    bool ends = false;
  };
  Share ShareOf(const std::string& agent) const;
  // As Expel(), but the others do not wait for anybody in their place; who
  // waits there for a generation is refused.
  void Drain(const Agent& agent, const std::string& reason, Context& c);

  // Nothing: the policy decides again. REQUIRES: ever_formed(), the journal can
  // be written, CheckPin() is OK.
  void SetPin(const std::optional<Pin>& pin, Context& c);

  // Ends the lineage: who holds its state is out of the job, and the next
  // launch begins anew. REQUIRES: ever_formed(), the journal can be written,
  // CheckForget() is OK.
  void Forget(const std::string& by, Context& c);
  // FailedPrecondition: a rank of the job is in sight.
  absl::Status CheckForget(const Context& c) const;

  // Nobody waits, and no trainer of a generation can still be there.
  bool idle(const Context& c) const;
  bool ever_formed() const { return generation_.has_value(); }
  // When this process first heard of it.
  absl::Duration since() const { return since_; }
  // Of those that wait, and of the generation while it runs.
  std::set<std::string> AgentNames() const;
  // The same with their sites, and those of the newest generation after its end
  // whose trainers may still hold its state.
  std::set<std::pair<std::string, std::string>> Participants() const;
  // Whose trainers have claimed a state since the last generation.
  std::set<std::string> ClaimingAgents() const;
  // None of those that wait gets in.
  void TurnAway(const std::string& reason, Context& c);
  absl::Duration ended_at() const { return ended_at_; }
  // Whose place it takes once it has ended: the agents of its newest
  // generation, as OwnerText() tells them. By hash, as a new group has them all
  // counted. Empty: it was never formed.
  const std::vector<size_t>& owners() const { return owners_; }
  std::string OwnerText(size_t owner) const;  // REQUIRES: is one.
  bool pinned() const { return pin_.has_value(); }
  GroupSnapshot Snapshot(const Context& c) const;

 private:
  // job_places.cc: of a new generation.
  void NoteOwners();
  bool running() const { return generation_.has_value() && !ended_; }
  // Its ranks come and go.
  bool elastic() const {
    return generation_ && generation_->on_shrink != protocol::OnShrink::kAbort;
  }

  // group.cc: membership.
  void OnJoined(const Agent& agent, const protocol::TrainerJoined& joined,
                Context& c);
  void OnLeft(const Agent& agent, const protocol::TrainerLeft& left,
              Context& c);
  // Who was there, and is not named any more.
  void OnUnnamed(const Agent& agent, const protocol::LocalTrainers& local,
                 Context& c);
  void OnVote(const Agent& agent, const protocol::MaskVote& vote, Context& c);
  void DropWaiting(const Agent& agent, absl::Duration now);
  void Enlist(const Agent& agent, const protocol::TrainerJoined& joined,
              Context& c);
  void Refuse(const std::vector<Membership::Refusal>& refusals, Context& c);
  std::string SeatText(const Seats::Seat& seat) const;
  std::string SeatText(uint32_t rank) const;
  std::string EndedInOrderText() const;  // REQUIRES: a trainer detached.
  bool EndedInOrder() const;             // REQUIRES: ended_.
  void SendToMembers(const protocol::CoordinatorMessage& message, Context& c);
  // Null: no member of the generation by name and process.
  const protocol::Member* FindMember(const Agent& agent) const;
  // Whether this agent may speak for that trainer: attach ids are known to all
  // members.
  bool SpeaksFor(const Agent& agent, const protocol::Digest& attach_id) const;
  // The same. If not, it is told to the log.
  bool HearsOf(const Agent& agent, const protocol::Digest& attach_id,
               Context& c) const;

  // claims.cc: who is believed.
  // Why what it says of a seat and of a state is not; nothing: it is, or says
  // nothing.
  std::optional<std::string> WhyUnproven(const Candidate& candidate) const;
  std::optional<std::string> WhyNotItsFirstWord(
      const Candidate& candidate) const;
  // Of a launch whose job the journal does not know those whose state does not
  // count. Empty: all are believed.
  std::vector<Membership::Refusal> Unbelieved(const Launch& launch) const;
  // Why a proven state is not believed: most agents of its generation say
  // otherwise, or the journal does. Nothing: it may be.
  std::optional<std::string> WhyRefuted(
      const Candidate& candidate, const std::vector<Launch>& launches,
      const std::optional<Reached>& newest) const;
  // Whose words on parameters are held against the candidate's: of all that
  // wait, and of those that no longer do.
  std::vector<const Candidate*> Witnesses(
      const Candidate& candidate, const std::vector<Launch>& launches) const;
  void NoteFirstWord(const Candidate& candidate);
  // The newest state that is claimed, where others say otherwise; open: it is
  // one's word against another's, so none is gone on from.
  struct Dispute {
    std::string text;
    bool is_open = false;
  };
  std::optional<Dispute> FirstDispute(const std::vector<Launch>& launches,
                                      const protocol::Digest& lineage) const;
  // Whose claims are refuted is out, and who differs is named. False: nothing
  // can be formed by what is left now.
  bool SettleClaims(const std::vector<Launch>& launches,
                    const protocol::Digest& lineage, Context& c);

  // lineage.cc: whose state the job's is.
  bool IsOver(const protocol::Digest& lineage) const;
  // Why a state of another lineage, or of one that is over, is of no use here;
  // nothing: it is of the job's.
  std::optional<std::string> WhyOver(const Candidate& candidate,
                                     const Context& c) const;
  void RefuseOver(const Candidate& candidate, const std::string& reason,
                  Context& c);
  // After a backup was restored: who comes with a state of a lineage that it
  // does not name got it after the backup, when that one's was over.
  void TakeUpUnknown(const Candidate& candidate, Context& c);
  // Those that wait with a state of another lineage than the new one.
  void RefuseOthers(Context& c);
  // Of ranks that may hold the job's state, the first for whom a launch that
  // would begin anew waits; null: it need not.
  const Seats::Seat* Holds(const Launch& launch, const Context& c) const;
  std::string HoldsReason(const Seats::Seat& seat, const Context& c) const;
  void EndLineage(std::string how, Context& c);
  // Those who left in order took the newest state along, and those who are here
  // have an older one.
  bool NewestLeft(const Context& c) const;
  // The last step of the newest generation that one who left in order may have
  // committed; nothing: none.
  std::optional<uint64_t> CommittedBy(const Seats::Seat& left,
                                      const Context& c) const;
  // It holds a state of a generation after all that the journal knows: that is
  // an older copy, and nothing that it says of this job is known to be so.
  bool IsLater(const Candidate& candidate, const Context& c) const;
  // The first such one that waits; null: nobody.
  const Candidate* FirstLater(const Context& c) const;
  std::string LaterText(const Candidate& later) const;
  // For the next generation: greater than all that are known, be it by what
  // ranks name.
  uint64_t NextNumber() const;
  // The first of the newest generation who may still come; null: nobody.
  const Seats::Seat* FirstMember(const Context& c) const;
  // Where the journal knows no lineage the state that has come farthest wins.
  void TryFormUnknown(const Launch& launch, Context& c);

  // group_regroup.cc: ranks that come and go.
  void Rejoin(const Agent& agent, const protocol::TrainerJoined& joined,
              Context& c);
  void TryAdmit(Context& c);
  void TryRegroup(Context& c);
  bool IsReady(const Launch& launch) const;
  Remains MakeRemains(const Context& c) const;
  void NoteDetached(const protocol::Trainer& trainer);
  void RecordDetached(Context& c);
  std::string RegroupReason(const Context& c) const;
  // Members that reached each other in none of several generations: the smaller
  // side is out.
  void Part(Context& c);
  // Newcomers at either end of a connection that never came about would end one
  // generation after the other.
  void NoteUnreached(const Agent& agent, const protocol::TrainerLeft& left,
                     Context& c);
  bool WasBefore(const std::string& agent) const;
  void KeepOut(const std::vector<Unreached::Blame>& blamed, Context& c);
  void KeepOut(const Unreached::Blame& blame, Context& c);
  // Before the next generation; `anew`: of a new job.
  void NoteConnected(bool anew);

  // group_forming.cc: generations begin and end.
  void TryForm(Context& c);
  void TryFormNew(Context& c);
  void Form(const Lineup& lineup, Context& c);
  void Poll(const Lineup& lineup);
  protocol::Generation MakeGeneration(const Lineup& lineup, Context& c) const;
  void End(std::string reason, Context& c);
  std::string WaitingReason(const Context& c) const;
  // What to add to it where a launch has another PACTRAIN_SITES than the job.
  std::string OtherSites() const;
  void SendWaiting(Context& c);
  // After the newest step that a report named; the reserved one without
  // reports.
  uint64_t NextStep() const;
  // A step that no trainer can have used, for the next generation.
  uint64_t SafeNextStep() const;

  // group_decisions.cc: what travels.
  Pins PinsOf(const protocol::Onset& onset) const;
  // What the generation begins with, by what its trainers declared.
  protocol::Decision FirstDecision(const protocol::Generation& generation,
                                   Context& c) const;
  // Steps that members may use before their next report.
  void ReserveSteps(Context& c);
  Telemetry MakeTelemetry() const;
  void NoteNoise(const protocol::StepReport& report, const std::string& agent);
  void WatchNorms(const protocol::StepReport& report,
                  const protocol::Member& member, Context& c);
  // As Choose(): nothing: what is aimed at stays.
  std::optional<protocol::Decision> Wanted(const Context& c) const;
  void Decide(Context& c);
  void NoteMasks(const MaskAgreement& masks, Context& c);
  void Prepare(protocol::Decision decision, Context& c);
  void Revoke(const std::string& reason, Context& c);
  std::string DecisionReason(const Context& c) const;
  // That masks have moved for more than two epochs, and which; empty: they have
  // not.
  std::string RestlessText(const Context& c) const;
  std::string RunningReason(const Context& c) const;
  // As GroupSnapshot::lost_agents.
  std::vector<std::string> LostAgents(const Context& c) const;
  // What is in force is known from now on, or not any more.
  void NoteMode(const Context& c);

  protocol::GroupId id_;
  absl::Duration since_;
  Membership membership_;
  std::map<std::string, std::string> waiting_told_;  // Agent -> reason.
  // Of what agents said last on their streams, by agent.
  std::map<std::string, uint64_t> revisions_;

  std::optional<protocol::Generation> generation_;  // The newest.
  std::vector<size_t> owners_;                      // Of that.
  bool ended_ = false;
  std::string end_reason_;
  absl::Duration ended_at_;
  // Due when the journal can be written.
  std::optional<std::string> end_due_;
  // When the first trainer of the generation detached in peace.
  std::optional<absl::Duration> detached_at_;
  Seats seats_;
  // Its trainers that have not left, by attach id; after a restart those that
  // were named again.
  std::map<protocol::Digest, Candidate> roster_;
  // Agents of the job's newest generation that committed a step: each of them
  // could reach all others.
  std::set<std::string> connected_;
  Unreached unreached_;  // In the newest generation.
  Testimony testimony_;
  std::string dispute_told_;
  // What each has said that it holds since the last generation, by what all
  // attaches of a trainer have in common: its first word. Who gives up waiting,
  // or says otherwise then, is no reason to believe the others: words stay
  // until an operator has put one out, the next generation or the state's end.
  std::map<uint64_t, Candidate> first_words_;
  // Generations one after the other, without a committed step, in which these
  // members did not reach each other.
  std::map<AgentPair, int> apart_;
  std::vector<LineageEnded> ended_lineages_;  // Newest first.
  // What pause had to wait for when the newest generation was formed: as long
  // as that one commits no step its newcomers count for nothing. Nothing: it is
  // the first, or unknown after a restart.
  std::optional<size_t> needed_before_;
  // Ranks, as asked for, that detached from a launch: it is complete without.
  RanksByLaunch detached_;
  // Of both, what the journal holds.
  TrainersDetached recorded_;
  Progress progress_;
  Account account_;
  protocol::AttemptsByCause FailedByCause(uint64_t total) const;
  // Of the generations before, less what was before the coordinator's start: to
  // be added to those of this one, modulo 2^64.
  uint64_t committed_before_ = 0;
  uint64_t failed_before_ = 0;
  protocol::AttemptsByCause failed_by_cause_before_ = {};
  uint64_t reserved_step_ = 0;
  Noise noise_;
  // Measured over predicted, as last seen.
  double noise_factor_ = kUnmeasuredNoiseFactor;
  NormWatch norms_;
  uint64_t norm_alarms_ = 0;
  std::optional<Pin> pin_;
  // An agent said that a trainer left. Its report just before counts the step
  // that it had voted for; a commit anywhere has its vote, so no later one is
  // possible.
  bool last_step_known_ = false;

  MaskVotes votes_{0};
  MaskState mask_state_ = MaskState::kMissing;
  MaskAgreement last_equal_;  // The newest equal votes.
  std::shared_ptr<const protocol::KeepByParameter> keep_;  // As told last.
  bool restless_told_ = false;
  protocol::Digest logged_mask_, logged_layout_;
  Decisions decisions_;
  // After a restart: what is in force is not known before the first report.
  bool in_force_unknown_ = false;
  // The prepared decision that an agent refused: not tried again until a vote
  // says something new or an epoch has passed.
  struct Refused {
    protocol::Decision decision;
    uint64_t step = 0;
    std::string reason;  // "agent 'b' (site 'y') refused it: ..."
  };
  std::optional<Refused> refused_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_GROUP_H_
