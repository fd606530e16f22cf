// One generation of a group at one agent: its steps, attempts and decisions.
//
// Rules (architecture: "Commit", "A failed attempt"):
//   - A vote and an abort of an attempt never change once said, and no vote
//     follows an own abort. Both are said again until the attempt is resolved.
//   - One who has moved on answers an old vote or abort with its certificate,
//     or with its own abort of that attempt; members are never further apart.
//   - A member whose own trainers are late, or that data still reaches, says
//     so, and nobody takes the wait for a stall; it is bounded by the straggler
//     timeout.
//   - An attempt fails only by the aborts of all members; the worst cause of
//     all decides between a retry, DENSE, a refused step and the end.
//   - Once this generation ends here, nothing is contributed to it ever again.
//   - What trainers are told to be written stays as it is in that attempt.
//
// Pure; writes the result region while handling an event. Thread-compatible.
#ifndef PACTRAIN_AGENT_CORE_GROUP_STATE_H_
#define PACTRAIN_AGENT_CORE_GROUP_STATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/core/ballot.h"
#include "agent/core/collective.h"
#include "agent/core/decision_switch.h"
#include "agent/core/device_paths.h"
#include "agent/core/events.h"
#include "agent/core/local_step.h"
#include "agent/core/options.h"
#include "agent/core/outbox.h"
#include "agent/core/status.h"
#include "agent/core/step_exchange.h"
#include "agent/core/telemetry.h"
#include "agent/exchange/schedule.h"
#include "base/weakened.h"
#include "protocol/control.h"
#include "protocol/types.h"

namespace pactrain::agent {

// How the last attempt before the open one was resolved: what a member that
// missed it is answered with.
struct PastAttempt {
  uint64_t step = 0;
  uint16_t attempt = 0;
  std::optional<protocol::Certificate> certificate;  // It was committed,
  std::optional<protocol::Abort> abort;              // or this was our abort.
};

class GroupState {
 public:
  struct LocalTrainer {
    TrainerId id = 0;
    uint32_t rank = 0;
    TrainerMemory memory;
    MaskState masks;
    uint64_t opened_step = ~uint64_t{0};  // Of its newest Submit.
    bool gone = false;       // Nothing is told to it, its slot is not read.
    bool straggler = false;  // The generation ended since it did not submit.
    Collective::Member nccl = {};
    DevicePath path = {};
    base::Secret seat = {};  // For itself alone; empty: none was told.
  };
  // `trainers`: those of member `me`, by rank. `options` and `outbox` outlive
  // this.
  GroupState(const Options* options, protocol::StartGeneration start, int me,
             std::vector<LocalTrainer> trainers, Outbox* outbox,
             absl::Duration now);

  // Tells the trainers and the connected peers that the generation is here.
  void Start(absl::Duration now);

  // InvalidArgument: the trainer breaks the protocol and is to be dropped.
  absl::Status OnSubmit(TrainerId trainer, const wire::Submit& submit,
                        absl::Duration now);
  // Of a node reduce.
  void OnCollective(TrainerId trainer, const CollectiveMessage& message,
                    absl::Duration now);
  // The trainer can no longer take part. `clean`: it detached. Between steps
  // that hurts nobody until a step is opened: the others may be about to
  // detach, too.
  void DropTrainer(TrainerId trainer, bool clean, const std::string& reason,
                   absl::Duration now);
  // What to answer now: a decision that was prepared is withdrawn.
  std::optional<protocol::PrepareAnswer> OnMasks(TrainerId trainer,
                                                 const MaskState& masks);
  // Told with the next report; of several before it the newest.
  void OnKeep(const protocol::KeepByParameter& keep) {
    keep_ = keep;
    keep_told_ = false;
  }
  void OnDevicePath(TrainerId trainer, const wire::DevicePath& message);
  uint64_t open_step() const { return step_; }  // Or the next one.
  // As of AgentState, of this group's step.
  int OpenAttempt() const;
  // Committed in this generation.
  uint64_t gradient_steps() const { return gradient_steps_; }

  void OnPeerConnected(int member);
  void OnPeerDisconnected(int member, bool damaged, const std::string& reason,
                          absl::Duration now);
  void OnControl(int member, const protocol::GroupControl& control,
                 absl::Duration now);
  void OnFrame(IncomingFrame frame, absl::Duration now);

  void OnPrepare(const protocol::Decision& decision, absl::Duration now);
  void OnRevoke(uint64_t version) { switch_.Revoke(version); }
  // Nobody can go on in this generation: ends it, after an open vote is
  // resolved.
  void BeginEnd(protocol::Cause cause, const std::string& reason,
                absl::Duration now);
  void EndNow();  // Whatever is open. REQUIRES: BeginEnd() was called.

  // As the event.
  void Tick(double slowest_link, absl::Duration now);
  // Tells the coordinator how far the group has come.
  void Report();
  // The same, and again what is said but once: it is another stream.
  void ReportAll();

  // Ended: all trainers have been told; it only answers other members still,
  // and touches no memory of trainers.
  bool ended() const { return ended_; }
  // Ended, and its trainers were told to attach again.
  bool may_rejoin() const { return may_rejoin_; }
  // What ended it, without the words around it.
  const std::string& end_reason() const { return end_reason_; }
  // Members, by agent, that there never was a connection with, if that ended
  // it.
  const std::vector<std::string>& unreached() const { return unreached_; }

  const protocol::Generation& generation() const { return generation_; }
  const protocol::Digest& digest() const { return digest_; }
  protocol::GenerationKey key() const { return {digest_, key_}; }
  const std::vector<LocalTrainer>& trainers() const { return trainers_; }
  int me() const { return schedule_.me(); }
  int MemberOf(const std::string& agent) const;  // -1: none.
  // Whether frames of it count: it has said on this connection that it runs the
  // generation, and its key was shown before.
  bool Hears(int member) const {
    return ended_ || peers_[member].ready || PT_WEAKENED(UnreadyHeard);
  }
  // Adds its counters and says what is open.
  void FillStatus(GroupStatus& status) const;
  // " after step 120", the last one that was committed.
  std::string AfterText() const;
  // How far it came. An open vote counts as a commit: it may have been one.
  protocol::StepReport MakeReport() const;

 private:
  struct Peer {
    bool connected = false;
    bool ready = false;  // Told so on this connection.
    bool ever_ready = false;
    absl::Duration down_since;
    std::string lost;             // Why its connection was; empty: it is not.
    bool answered_frame = false;  // Since the generation ended.
    std::string late;             // Whom it waits for in the open attempt, when
    absl::Duration late_at;       // it last said so. Empty: it said nothing.
    uint64_t heard_step = 0;      // The newest of which a frame came, and when
    absl::Duration heard_at;      // the first one did.
    std::vector<protocol::GroupControl> early;  // About what comes next.
  };
  enum class When { kPast, kNow, kNext, kOther };

  // group_state.cc
  int TrainerIndex(TrainerId trainer) const;
  std::vector<MaskState> Masks() const;
  std::vector<DevicePath> Paths() const;
  // Its first Submit of a step that was refused, or made dense, before it came:
  // only now can the trainer be told.
  void AnswerLate(LocalTrainer& trainer, uint64_t step);
  void TellTrainers(const decltype(SendTrainer::message)& message);
  void Tell(const Collective::Says& says);  // And the log of its end.
  Collective::Says OnStaged(size_t index, const wire::Staged& staged,
                            absl::Duration now);
  // How far results are written, if that is worth a message.
  void TellWritten();
  void Attach(const LocalTrainer& trainer);
  void Touch(absl::Duration now);  // The step is open from now on.
  void EndQuietly();               // Nobody is left here to be told.
  // A trainer is gone, and its memory with it as soon as this event is handled:
  // results move to a region of one that stays.
  void KeepResults();
  // A trainer detached and now a step is opened: true, and the end begun.
  bool EndForDetached(absl::Duration now);

  // group_peers.cc
  When Classify(uint64_t step, uint16_t attempt) const;
  void OnReady(int member, const protocol::Ready& ready, absl::Duration now);
  void OnVote(int member, const protocol::GroupControl& control,
              absl::Duration now);
  void OnAbort(int member, const protocol::GroupControl& control,
               absl::Duration now);
  void OnCertificate(const protocol::Certificate& certificate,
                     absl::Duration now);
  void OnLate(int member, const protocol::Late& late, absl::Duration now);
  void HoldControl(int member, const protocol::GroupControl& control);
  void AnswerEnded(int member, const protocol::GroupControl& control);
  void AnswerFrame(const IncomingFrame& frame);
  void AnswerPast(int member, uint64_t step, uint16_t attempt);
  bool AllReady() const;
  // When the last of those who send frames of the open step had begun to.
  absl::Duration LastHeard() const;
  size_t HoldLimit() const;
  void Tell(int member,
            decltype(protocol::GroupControl::body) body);  // If connected.
  void TellAll(const decltype(protocol::GroupControl::body)& body);
  void RepeatOwnWord(int member);
  // Since it last repeated its word it has received data of the open attempt.
  bool Receives() const;

  // group_attempts.cc
  void BeginAttempt(absl::Duration now);
  void ReplayEarly(absl::Duration now);
  // Sends what the local sums allow.
  void OpenBuckets(absl::Duration now);
  std::optional<Problem> OpenBucket(const LocalStep::Bucket& bucket,
                                    std::vector<OutgoingFrame>& out);
  void SendFrames(std::vector<OutgoingFrame> frames);
  void AbortAttempt(protocol::Cause cause, const std::string& detail,
                    absl::Duration now);
  protocol::Abort MakeAbort(protocol::Cause cause,
                            const std::string& detail) const;
  void MaybeVote(absl::Duration now);
  void Resolve(absl::Duration now);
  bool Measures() const;     // The open step's noise.
  bool IsBroadcast() const;  // The open step.
  // Each of its buckets leaves elements outside the masks out.
  bool IsCompacted() const;
  // The step of gradients after the open one, from 1.
  uint64_t NextGradientStep() const { return gradient_steps_ + 2; }
  bool CandidateIsDue() const;
  // The own vote waits for a decision that would be due; it does so for a
  // bounded time.
  bool AwaitsDecision(absl::Duration now);
  StepExchange NewExchange() const;
  void NoteNoise();
  void Commit(uint64_t candidate, absl::Duration now);
  // That of the step after the open one.
  const protocol::Decision& NextDecision() const;
  void ShareResults();
  void CopyResults(uint8_t* to) const;
  void FailAttempt(const Resolution& resolution, absl::Duration now);
  void MakeDense(const std::string& reason);
  void TellDense(const LocalTrainer& trainer);
  void RefuseStep(const Resolution& resolution, absl::Duration now);
  void NextStep(absl::Duration now);
  void EndIfResolved(absl::Duration now);
  void End(bool outcome_known);

  // group_tick.cc
  void CheckPeers(absl::Duration now);
  void CheckProgress(absl::Duration now);
  absl::Duration StallTimeout() const;
  std::string LateText(absl::Duration now) const;
  void CheckLate(const std::string& late, absl::Duration now);
  void ReportIfDue(absl::Duration now);

  const Options* const options_;
  const protocol::Generation generation_;
  const base::Secret key_;
  const protocol::Digest digest_;
  const Schedule schedule_;
  const std::vector<std::string> names_;  // Of the members.
  std::vector<LocalTrainer> trainers_;
  // Where results are written: the region of a trainer that is not gone, or
  // null.
  uint8_t* results_;
  Outbox* const outbox_;
  std::vector<Peer> peers_;  // By member; own entry unused.
  DecisionSwitch switch_;

  // The open attempt.
  uint64_t step_;
  uint16_t attempt_ = 1;
  std::string dense_reason_;
  bool dense_ = false;  // Of this step from some attempt on.
  bool exact_ = false;  // fp32, because results differed.
  LocalStep local_;
  Collective collective_;
  Collective::Phase told_phase_ = Collective::Phase::kNone;
  double slowest_link_ = 0;  // Of the last Tick().
  StepExchange exchange_;
  uint64_t told_elements_ = 0;  // Of exchange_.written().
  Ballot ballot_;
  std::optional<protocol::CommitVote> own_vote_;
  std::optional<protocol::Abort> own_abort_;
  std::optional<absl::Duration> open_since_;  // Set: something of it was heard.
  absl::Duration last_progress_;
  absl::Duration received_at_;  // Of a frame of an open attempt.
  absl::Duration aborted_at_;
  std::optional<absl::Duration> awaits_since_;  // A decision, in this step.
  bool awaited_in_vain_ = false;  // No decision or mask vote has come since.

  // What came for the next attempt or step, and how much of it.
  std::vector<IncomingFrame> early_frames_;
  size_t early_bytes_ = 0;

  std::optional<PastAttempt> past_;
  std::map<uint64_t, std::string> refused_;  // The newest refused steps: why.
  std::optional<std::string> detached_;      // Who did between steps.
  std::optional<Problem> ending_;  // Why the generation is about to end.
  absl::Duration ending_since_;
  bool ended_ = false;
  bool may_rejoin_ = false;
  std::string end_reason_;
  std::vector<std::string> unreached_;

  // Telemetry.
  GroupStatus counters_;
  Telemetry telemetry_;
  uint64_t step_sent_bytes_ = 0;  // Of the open step, to other sites.
  uint64_t step_received_bytes_ = 0;
  uint64_t step_dense_bytes_ = 0;
  absl::Duration last_repeat_;
  absl::Duration last_waiting_;
  bool late_logged_ = false;  // In this step.
  std::string late_;          // As StepReport::waits_for.
  absl::Duration last_report_;
  uint64_t committed_step_ = 0;
  std::optional<uint64_t> first_compacted_step_;
  uint64_t gradient_steps_ = 0;  // Committed in this generation.
  uint64_t failed_attempts_ = 0;
  std::optional<protocol::KeepByParameter> keep_;
  bool keep_told_ = false;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_GROUP_STATE_H_
