// What an agent and the coordinator say to each other, as plain structs. The
// wire form is proto/pactrain/v1/agent.proto; rpc/proto_convert checks and
// converts.
//
// Every message is idempotent: it can be lost with a stream and said again on
// the next one. What an agent has of trainers it says as state, whole:
// LocalTrainers.
#ifndef PACTRAIN_PROTOCOL_CONTROL_H_
#define PACTRAIN_PROTOCOL_CONTROL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "base/secret.h"
#include "protocol/audit_heads.h"
#include "protocol/frame.h"
#include "protocol/keep_by_parameter.h"
#include "protocol/types.h"

namespace pactrain::protocol {

// A place in the history of a coordinator's journal: who wrote there last, how
// much, and who before (coordinator/core/history.h). Agents remember the newest
// that they were told: a journal that does not hold it is an older copy.
struct HistoryMark {
  Digest writer;         // Random, of one opening of the journal; empty: none.
  uint64_t batches = 0;  // That it had written by then; > 0.
  Digest before;         // The writer before it; empty: it was the first.
  uint64_t batches_before = 0;  // All that this one wrote.
  uint64_t total = 0;           // Batches of all writers up to here.
  // Made of the journal's secret by the coordinator's shell: nobody else can
  // make up a history.
  base::Secret proof = {};
  // Where the audit log ends, as far as it is durable; filled in by the shell,
  // too. Of what an agent says: empty.
  AuditHead audit = {};

  bool empty() const { return writer.empty(); }
  bool operator==(const HistoryMark&) const = default;
};

// ---- Agent to coordinator -------------------------------------------------

// First message of a stream. After it the agent says LocalTrainers of each
// group that it has.
struct AgentHello {
  std::string agent;
  Digest incarnation;
  std::string site;
  std::string data_address;
  std::string version;  // Of the software, "0.1.0".
  std::string
      cluster_id;  // Pinned from an earlier coordinator; empty: none yet.
  // host:port of its /metrics for whoever reaches the agent's data address;
  // empty: there is none for them.
  std::string metrics_address = {};
  HistoryMark history = {};  // The newest that it was told in this cluster.
  std::vector<AuditHead> audit = {};  // All that it keeps, the oldest first.
  // It hands on the secrets of seats. One of the release before does not.
  bool proves = true;
};

// Every heartbeat interval.
struct Heartbeat {
  AuditHead audit = {};  // That it has kept since the last one; empty: none.
};

// One that is here. What it says of its state, and of being one that had a seat
// before, is a claim.
struct TrainerJoined {
  GroupId group;
  Trainer trainer;
  // Generation the trainer already belongs to; 0: none. Lets a restarted
  // coordinator take up where the last one stopped.
  uint64_t generation = 0;
  // Its claim is of a seat that it had. Not on the wire: the coordinator's
  // shell finds it out by trainer.proof.
  bool proven = false;

  bool operator==(const TrainerJoined&) const = default;
};

// In the reason of a generation's end: a rank left of its own will while others
// train on. Starting again from a checkpoint would only repeat that.
inline constexpr char kEndedInOrder[] = " ended in order";

// One that is not here any more.
struct TrainerLeft {
  GroupId group;
  uint32_t rank = 0;
  Digest attach_id;
  std::string reason;  // "detached" or what killed it.
  // Not by itself: its agent ended the generation, and `reason` says why.
  bool generation_ended = false;
  // It lives and is to attach again; said anew when it does not any more.
  bool may_return = false;
  // With generation_ended: members that this agent never had a connection with
  // in the generation, for so long that it ended it. By name.
  std::vector<std::string> unreached = {};
  // With may_return: it was too slow for the generation, so nobody has to wait
  // for it. It may hold the newest state all the same.
  bool straggled = false;
  // Not of this process of the agent. Not on the wire: incarnations tell it.
  bool former = false;

  bool operator==(const TrainerLeft&) const = default;
};

// A trainer's word on its mask set (architecture: Masks).
struct MaskVote {
  GroupId group;
  uint64_t generation = 0;
  uint32_t rank = 0;
  Digest layout_digest;
  Digest mask_digest;  // Empty: it has no masks.
  uint32_t steps_unchanged = 0;
  uint32_t settle_steps = 1;    // Steps unchanged that make this vote count.
  bool inside_decision = true;  // Its mask set is inside the decision's.
  uint64_t kept_elements = 0;
  uint64_t elements = 0;
  // Which parameters' masks moved most in its last change, in words of the
  // trainer: printable ASCII, at most kMaxMoved; empty: not known.
  std::string moved = {};
  // That change came before this step; none: no other vote came before.
  std::optional<uint64_t> changed_step = {};
  // Steps of gradients of its generation that were committed before it; 0 also
  // from agents that do not say.
  uint64_t after_steps = 0;

  bool operator==(const MaskVote&) const = default;
};

// Answer to Prepare: agreed to name it in commit votes, or refused with a
// reason.
struct PrepareAnswer {
  GroupId group;
  uint64_t generation = 0;
  uint64_t version = 0;
  bool accepted = false;
  std::string reason;
};

// Progress of a group at one agent, at most twice a second and after each of
// the first steps: telemetry, not durable.
struct StepReport {
  GroupId group;
  uint64_t generation = 0;
  // The newest; meaningful if committed_count > 0. A step that the agent voted
  // for counts as long as its outcome is open: it may have been committed.
  uint64_t committed_step = 0;
  uint64_t committed_count = 0;   // Since the generation began.
  uint64_t decision_version = 0;  // In force for the next step.
  uint64_t failed_attempts = 0;
  // Means since the last report; 0: none committed.
  double step_seconds = 0;      // From the first submit to the commit.
  double wait_seconds = 0;      // From the last local submit to the commit.
  double interval_seconds = 0;  // From commit to commit.
  struct Link {
    std::string peer_site;
    uint64_t sent_bytes = 0;  // Since the agent started.
    uint64_t received_bytes = 0;
    double goodput_bytes_per_second = 0;  // While busy; 0: not measured yet.
    double rtt_seconds = 0;               // 0: not measured yet.
    bool operator==(const Link&) const = default;
  };
  std::vector<Link> links;
  // This agent's part of the noise of one committed step, as sums of squares
  // over the elements that were sent (ARCHITECTURE.md, "TERNARY"); not
  // negative, finite.
  struct Noise {
    uint64_t step = 0;
    uint64_t decision_version = 0;  // In force for it.
    double local = 0;               // ||g_i||^2 of the local trainers.
    double site = 0;     // ||s_j||^2 of its site's sum, over what it owns.
    double encoded = 0;  // ||x||^2 of what it encodes (or would, if exact).
    double error = 0;    // ||Q(x) - x||^2 of that.
    double clip = 0;     // The part of it that clipping made.
    double total = 0;    // ||T||^2 of the result, over what it forms.
    bool operator==(const Noise&) const = default;
  };
  std::vector<Noise> noise;  // Of steps not reported yet.
  // The first of the generation that left elements outside the masks out.
  std::optional<uint64_t> first_compacted_step = {};
  // To other sites since the generation began: in frames, headers included; the
  // elements in them as fp32; and all elements, which FULL had sent, as fp32.
  uint64_t sent_bytes = 0;
  uint64_t sent_kept_bytes = 0;
  uint64_t sent_dense_bytes = 0;
  // Whom the open step has waited for longer than for a slow one, in words:
  // printable ASCII, at most kMaxMoved; empty: for nobody.
  std::string waits_for = {};
  AttemptsByCause failed_by_cause = {};  // Of failed_attempts.
  // Once for each mask set that settled at rank 0, where that is here.
  std::optional<KeepByParameter> keep_by_parameter = {};

  // Of this node's trainers; nothing: all are on CPUs, or do not say.
  std::optional<DevicePath> device_path = {};

  bool operator==(const StepReport&) const = default;
};

// All that an agent has of a group's trainers. State and no event: said whole
// whenever something of it has changed, and on every stream. So a newer one
// takes the place of an older one, in whatever order or number they come
// (local_trainers.h changes it).
struct LocalTrainers {
  GroupId group;
  // Of the agent's process, all groups together; grows with every change. 0: of
  // or for a release before, which says one change at a time: one element.
  uint64_t revision = 0;
  // At most kMaxLocalTrainers that are here or may return, and as many others.
  // Who is in none of the two lists is gone.
  std::vector<TrainerJoined> here;
  std::vector<TrainerLeft> left;  // The newest last.
  std::vector<MaskVote> votes;    // The newest of each that is here.
  // How far the generation came that has lost a trainer here: what those who
  // left have.
  std::optional<StepReport> report = {};

  bool operator==(const LocalTrainers&) const = default;
};

using AgentMessage = std::variant<AgentHello, Heartbeat, LocalTrainers,
                                  PrepareAnswer, StepReport>;

// ---- Coordinator to agent -------------------------------------------------

// Answer to AgentHello.
struct Welcome {
  std::string cluster_id;  // Made once per state directory.
  uint64_t term = 0;
  absl::Duration heartbeat_interval = absl::Seconds(1);
  HistoryMark history = {};  // The newest.
  // It takes LocalTrainers. One of the release before does not, and takes
  // ChangesOf() them.
  bool takes_local_trainers = true;
  std::string version = {};  // Of its software; empty: it did not say.
};

struct StartGeneration {
  Generation generation;
  // Lets a member show the others that it is one. The same however often the
  // generation is told; filled in by the coordinator's shell.
  base::Secret key = {};
  // Of the seats of the agent that is told, parallel to its ranks; filled in
  // there, too. By its own a trainer shows later that it was here. Empty: the
  // coordinator is of the release before.
  std::vector<base::Secret> seats = {};
};

// Why a group has no generation yet, for the waiting trainers' log and errors.
struct GroupWaiting {
  GroupId group;
  std::string reason;  // "waiting for ranks 2, 3 of 4"
};

// A trainer may not take part; final for this attach.
struct JoinRefused {
  GroupId group;
  uint32_t rank = 0;
  Digest attach_id;
  std::string reason;
  bool replaced = false;  // A new lineage has begun without its state.
};

struct Prepare {
  GroupId group;
  uint64_t generation = 0;
  Decision decision;
};

// Takes back a Prepare that is not in force yet.
struct Revoke {
  GroupId group;
  uint64_t generation = 0;
  uint64_t version = 0;
};

// The generation is over (a member or trainer is gone, or newcomers join the
// next one): every trainer of it
// that is still attached gets an error.
struct EndGeneration {
  GroupId group;
  uint64_t generation = 0;
  std::string reason;
};

using CoordinatorMessage =
    std::variant<Welcome, StartGeneration, GroupWaiting, JoinRefused, Prepare,
                 Revoke, EndGeneration, HistoryMark>;

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_CONTROL_H_
