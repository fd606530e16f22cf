// Who of a formed generation is still there, and who else may hold the job's
// state: ranks of earlier generations of its lineage that it was formed
// without.
//
// Every trainer has a seat. A seat is left when its agent says so (or a later
// process of it, which knows that this one is dead), when what the agent has of
// the group's trainers does not name it any more, when the agent comes back as
// another process, or when it opened a new stream and said nothing of the group
// in time. A broken stream alone frees no seat. Where only the generation
// ended, or the agent died, the trainer may live and attach again. That is so
// until its agent says otherwise: time alone makes nobody gone (FirstHolder()).
//
// A trainer's attach ids have their upper half in common, so it is known again
// whichever of its attaches a seat is of.
//
// Pure. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_SEATS_H_
#define PACTRAIN_COORDINATOR_CORE_SEATS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/weakened.h"
#include "coordinator/core/agents.h"
#include "coordinator/core/journal_record.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

class Seats {
 public:
  enum class State {
    kPresent,
    kAwaited,   // Its agent has a new stream and is to say who is there.
    kLeft,      // For good.
    kDetached,  // For good, by its own will.
    kKeptOut,   // For good, whatever is said of it.
    kAlive,     // The generation is over; it is still to attach again.
    kUnknown,   // Its agent died; it may live and attach again.
    // It was too slow for the generation: it may attach again and hold the
    // newest state, but a next generation need not wait for it.
    kStraggled,
    kReturned,  // It has attached again.
  };
  struct Seat {
    uint32_t rank = 0;
    protocol::Digest attach_id;
    size_t member = 0;  // Index into `members`.
    State state = State::kPresent;
    absl::Duration awaited_since;
    // Since its agent's stream was lost, or nobody has heard of it; nothing: it
    // is in sight.
    std::optional<absl::Duration> silent_since;
  };

  Seats() = default;
  explicit Seats(const protocol::Generation& generation);
  // After a restart at `now`, when no agent has been heard yet.
  Seats(const protocol::Generation& generation,
        const std::set<uint32_t>& detached, const std::vector<Holder>& away,
        absl::Duration now);

  // Those of `before` who may live, and are not of this generation, may hold
  // its lineage's state.
  void Carry(const Seats& before);
  // Somebody who says that he holds that state, and has no seat.
  void AddHolder(const Holder& holder);
  // For the journal: those who are not of this generation.
  std::vector<Holder> Away() const;

  // Null: no such trainer in this generation.
  const Seat* Find(const protocol::Digest& attach_id) const;
  // The same by any of its attaches.
  const Seat* FindTrainer(const protocol::Digest& attach_id) const;
  // Nor one that is not of this generation.
  const Seat* FindAnyOf(const protocol::Digest& attach_id) const;
  // Null: nor one who may hold the state.
  const Seat* FindHolder(const protocol::Digest& attach_id) const;
  // The trainer is (still) there. False: it is not of this generation, or left.
  bool Confirm(const protocol::Digest& attach_id);
  // `how`: one of the ways to leave. False: it is not of this generation, or
  // left already for good, or has returned.
  bool Leave(const protocol::Digest& attach_id, State how);
  // A trainer of this attach, or of another one of it, may live, and is not
  // known to have gone that way.
  bool Changes(const protocol::Digest& attach_id, State how) const;
  // Ranks and attaches of those who are there or alive at this process of the
  // agent, as far as it has said, or are to be named by it.
  std::vector<std::pair<uint32_t, protocol::Digest>> LivingAt(
      const Agent& agent) const;
  // The trainer of this attach has attached again; another `how`: and is gone
  // from there, or kept out.
  // False: it has no seat.
  bool Return(const protocol::Digest& attach_id, absl::Duration now,
              State how = State::kReturned);
  // A later process of an agent says that a trainer of a former one is gone, by
  // any of its attaches. False: nobody like that may live.
  bool LeaveFormer(const Agent& agent, const protocol::Digest& attach_id,
                   State how);
  // `agent` attached a new trainer for `rank`: the old one of an ended
  // generation is gone.
  void Replace(const std::string& agent, uint32_t rank);

  // An agent opened a stream: its trainers must be named again; with another
  // incarnation they are gone. Returns the ranks that were lost by it.
  std::vector<uint32_t> OnAgentConnected(const Agent& agent,
                                         absl::Duration now);
  void OnAgentDisconnected(const Agent& agent, absl::Duration now);
  // Ranks that became lost because they were not named again in time.
  std::vector<uint32_t> Expire(const Agents& agents, absl::Duration timeout,
                               absl::Duration now);

  // The first seat whose trainer may still be there. Null: all are gone.
  const Seat* FirstHeld(const Agents& agents, absl::Duration gone_after,
                        absl::Duration now) const;
  // The first who may hold the job's state and is not known to be gone, of this
  // generation or an earlier one; who has been silent for `presumed_dead`
  // counts as gone. Null: nobody is left.
  const Seat* FirstHolder(absl::Duration presumed_dead,
                          absl::Duration now) const;
  // The first of this generation whom no agent speaks for now, although it may
  // well go on. Null: all are in sight.
  const Seat* FirstUnseen(const Agents& agents) const;
  bool AllLeft() const;
  // A trainer of this generation at that member has not left, as far as anybody
  // said.
  bool IsDeserted(size_t member) const;
  // Agents of this generation with a trainer that may live, and their sites.
  std::set<std::pair<std::string, std::string>> AgentsOfLiving() const;
  // Those of this generation that left by their own will.
  std::vector<const Seat*> LeftInOrder() const;
  // Ranks that left, and nobody has to take their place: by their own will, or
  // kept out.
  std::set<uint32_t> Detached() const;
  // Those that are there or alive, as a connected agent tells; and those who
  // were too slow, if they are waited for.
  size_t CountAlive(const Agents& agents, bool stragglers = false) const;
  // Of any generation, who were too slow among them: those that may hold the
  // job's state, and whom a connected agent knows.
  size_t CountHolders(const Agents& agents) const;
  bool IsHeard(const Seat& seat, const Agents& agents) const;
  // Those that may be alive at an agent that is away, less those who have been
  // silent for `timeout`, counted from `since` at the earliest.
  size_t CountUnknown(const Agents& agents, absl::Duration since,
                      absl::Duration timeout, absl::Duration now,
                      bool stragglers = false) const;
  size_t size() const { return own_; }
  const protocol::Member& MemberOf(const Seat& seat) const {
    return members_[seat.member];
  }
  const std::vector<protocol::Member>& members() const { return members_; }

 private:
  std::vector<protocol::Member> members_;
  static bool HasLeft(const Seat& seat) { return seat.state >= State::kLeft; }
  static bool MayLive(const Seat& seat) {
    return !HasLeft(seat) || seat.state == State::kAlive ||
           seat.state == State::kUnknown ||
           (seat.state == State::kStraggled &&
            !PT_WEAKENED(StragglersHoldNothing));
  }
  // A next generation waits for it.
  bool IsAwaited(const Seat& seat, bool stragglers = false) const {
    return IsOwn(seat) && MayLive(seat) &&
           (stragglers || seat.state != State::kStraggled);
  }
  // Equal for all attaches of one trainer.
  static uint64_t TrainerOf(const protocol::Digest& attach_id) {
    return attach_id.hi;
  }
  bool IsOwn(const Seat& seat) const { return &seat < seats_.data() + own_; }
  Seat* MutableFind(const protocol::Digest& attach_id);
  void Add(const protocol::Member& member, Seat seat);

  size_t own_ = 0;
  // `own_` of the generation by rank, then those away, the oldest first.
  std::vector<Seat> seats_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_SEATS_H_
