// Who of a formed generation is still there.
//
// Every trainer has a seat. A seat is left when its agent says so, when the
// agent comes back as another process, or when the agent opened a new stream
// and did not name the trainer again in time, be it as one that is still to
// attach again: what was said while the stream was down is lost. A broken
// stream alone frees no seat. Where only the generation ended, or the agent
// died, the trainer may live and attach again.
//
// Pure. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_SEATS_H_
#define PACTRAIN_COORDINATOR_CORE_SEATS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/agents.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

class Seats {
 public:
  enum class State {
    kPresent,
    kAwaited,   // To be named again by its agent since a new stream was opened.
    kLeft,      // For good.
    kDetached,  // For good, by its own will.
    kKeptOut,   // For good, whatever is said of it.
    kAlive,     // The generation is over; it is still to attach again.
    kUnknown,   // Its agent died; it may live and attach again.
    kReturned,  // It has attached again.
  };
  struct Seat {
    uint32_t rank = 0;
    protocol::Digest attach_id;
    size_t member = 0;  // Index into `members`.
    State state = State::kPresent;
    absl::Duration awaited_since;
  };

  Seats() = default;
  // `present` false: after a restart, when no agent has been heard yet.
  Seats(const protocol::Generation& generation, bool present,
        const std::set<uint32_t>& detached = {});

  // Null: no such trainer in this generation.
  const Seat* Find(const protocol::Digest& attach_id) const;
  // The trainer is (still) there. False: it is not of this generation, or left.
  bool Confirm(const protocol::Digest& attach_id);
  // `how`: one of the ways to leave. False: it is not of this generation, or
  // left already for good, or has returned.
  bool Leave(const protocol::Digest& attach_id, State how);
  // It has attached again; another `how`: and is gone from there, or kept out.
  void Return(const protocol::Digest& attach_id, State how = State::kReturned);
  // `agent` attached a new trainer for `rank`: the old one of an ended
  // generation is gone.
  void Replace(const std::string& agent, uint32_t rank);

  // An agent opened a stream: its trainers must be named again; with another
  // incarnation they are gone. Returns the ranks that were lost by it.
  std::vector<uint32_t> OnAgentConnected(const Agent& agent,
                                         absl::Duration now);
  // Ranks that became lost because they were not named again in time.
  std::vector<uint32_t> Expire(const Agents& agents, absl::Duration timeout,
                               absl::Duration now);

  // The first seat whose trainer may still be there. Null: all are gone.
  const Seat* FirstHeld(const Agents& agents, absl::Duration gone_after,
                        absl::Duration now) const;
  bool AllLeft() const;
  // Ranks that left, and nobody has to take their place: by their own will, or
  // kept out.
  std::set<uint32_t> Detached() const;
  // Those that are there or alive, as a connected agent tells.
  size_t CountAlive(const Agents& agents) const;
  // Those that may be alive at an agent that is away.
  size_t CountUnknown(const Agents& agents) const;
  size_t size() const { return seats_.size(); }
  bool HasAgent(const std::string& agent) const;
  const protocol::Member& MemberOf(const Seat& seat) const {
    return members_[seat.member];
  }
  const std::vector<protocol::Member>& members() const { return members_; }

 private:
  std::vector<protocol::Member> members_;
  static bool HasLeft(const Seat& seat) { return seat.state >= State::kLeft; }
  static bool MayLive(const Seat& seat) {
    return !HasLeft(seat) || seat.state == State::kAlive ||
           seat.state == State::kUnknown;
  }
  bool IsHeard(const Seat& seat, const Agents& agents) const;

  std::vector<Seat> seats_;  // By rank.
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_SEATS_H_
