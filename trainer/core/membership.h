// Keeps one rank in a job whose ranks come and go: who is current, who takes
// whose state, whose gradients are void, what is tried again and for how long.
//
// When a generation ends because its members changed, every rank that lives
// attaches again and says which state it holds. The coordinator names a donor,
// a rank that has come farthest. Then, before anything else, all ranks exchange
// by XOR steps, to which those that have nothing to say add zeros: first what
// the donor has, who needs state and of which kind each rank is; then, for each
// state that somebody needs, its size and digest and its bytes in pieces. The
// model's state comes from the donor; that of optimizers and script from it or
// else the first current rank of the same kind: no other kind could read it.
//
// Invariants: a rank takes a state only of its own lineage and of as many
// committed steps as its own or more. It holds on to its own, and says so when
// it attaches, until the new one is complete and its digest is checked. A rank
// that is current has the donor's parameters, or ends. Each wait has an end:
// exchanges are repeated kAttempts times, attaching goes on for
// attach_timeout_ms without a committed step.
//
//   todo = membership.Begin(mine, where_it_is, now);  // A step has failed.
//   while (todo.action is neither PT_DONE nor PT_FAIL)
//     todo = membership.Handle(what_came_of(todo), now);
//
// Pure: no I/O, clock, threads or logging; `now` is monotonic time since any
// fixed start. Thread-compatible. Owns all memory that a todo points to, until
// the next call, and the state of PT_DONE until Begin().
#ifndef PACTRAIN_TRAINER_CORE_MEMBERSHIP_H_
#define PACTRAIN_TRAINER_CORE_MEMBERSHIP_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/core/error.h"
#include "trainer/membership_abi.h"

namespace pactrain::trainer {

// Whether a session that is over with this error may be followed by another.
bool MayGoOn(const Error& error, bool agent_returns);

class Membership {
 public:
  using Time = std::chrono::nanoseconds;

  explicit Membership(const pt_membership_options& options)
      : options_(options) {}

  // A step has failed so that MayGoOn(), in the generation that `there` names
  // and with which this rank had the state in common; or, of a newcomer, it is
  // attached to a job that has a donor.
  pt_todo Begin(const pt_mine& mine, const pt_result& there, Time now);
  // REQUIRES: the last todo was neither PT_DONE nor PT_FAIL.
  pt_todo Handle(const pt_result& result, Time now);
  // The state of PT_DONE is taken: frees its memory.
  void Forget();

 private:
  static constexpr int kAttempts = 10;  // Of an exchange: a bad network's cost.
  static constexpr uint64_t kMaxStateBytes = uint64_t{1} << 40;
  // Of a state that is sent at once, however large the model: at 100 Mbit/s
  // something is to be told every six seconds.
  static constexpr uint64_t kMaxPieceBytes = uint64_t{64} << 20;

  enum class Doing { kAttach, kSleep, kHeader, kGive, kAnnouncement, kPiece };
  // Each is announced and sent by itself.
  enum Part { kCommon, kOwn };
  struct Transfer {
    Part part;
    int kind;  // Of those who take kOwn.
    uint32_t giver;
    bool taken;  // By this rank.
  };
  struct Held {
    pt_digest lineage = {};  // Zero: no state.
    uint64_t committed = 0;
    uint64_t next_step = 0;
  };

  pt_todo Attach(Time now);
  pt_todo AttachFailed(const Error& error, Time now);
  pt_todo Entered(Time now);
  pt_todo ExchangeFailed(const Error& error, Time now);
  pt_todo HeaderCame();
  pt_todo Gave(const Error& error, const pt_result& result);
  pt_todo Announce();
  pt_todo AnnouncementCame(Time now);
  pt_todo SendPiece(Time now);
  pt_todo PieceCame(Time now);
  pt_todo Done();
  pt_todo Fail(wire::Code code, const std::string& text, bool leaves = false);
  // The `bytes` of sent_ are exchanged as a step of this name.
  pt_todo Exchange(Doing doing, const char* name, uint64_t bytes);
  pt_todo Repeat();

  // The first line of what does not fit about the donor; empty: all does.
  std::string Misfit() const;
  // Who needs state: a transfer for the model and one for each kind. False: no
  // current rank is of this one's kind.
  bool PlanTransfers();
  // Those that need what is being sent.
  std::vector<uint32_t> Takers() const;
  // The state that it came with is also that of the generation it is in.
  void Hold() {
    held_ = {there_.lineage, mine_.progress.committed, there_.resume_step};
  }
  // Until when to try, if a step of now is the first that fails.
  Time End(Time now);
  void Tell(const std::string& text) { tell_ = text; }

  const pt_membership_options options_;
  std::string settings_, shared_;
  pt_mine mine_ = {};
  Held held_;
  // After how many committed steps a step has failed, and when.
  std::optional<uint64_t> failed_after_;
  Time failed_since_ = {};
  Time end_ = {};

  Doing doing_ = Doing::kAttach;
  pt_result there_ = {};       // Where this rank is.
  uint32_t ranks_before_ = 0;  // And was, of how many.
  uint32_t rank_before_ = 0;
  uint64_t entered_ = 0;  // The first step of this generation.
  Time entered_at_ = {};
  std::vector<uint8_t> sent_, received_;
  uint64_t bytes_ = 0;  // Of them that are exchanged.
  pt_digest layout_ = {};
  int attempts_left_ = 0;

  pt_progress progress_ = {};           // The donor's.
  pt_digest parameters_ = {};           // The donor's.
  std::vector<uint8_t> needy_, kinds_;  // Bits by rank.
  std::string donors_settings_;
  bool equal_ = false;  // This rank needs what it has.
  std::vector<Transfer> transfers_;
  size_t transfer_ = 0;
  const uint8_t* given_[2] = {};
  uint64_t given_bytes_[2] = {};
  std::string problem_;  // Why this rank cannot give its state.
  uint64_t size_ = 0;    // Of the state that is being sent, its digest, and
  uint64_t offset_ = 0;  // how much of it has been.
  pt_digest digest_ = {};
  std::vector<uint8_t> taken_[2];
  Time progress_told_ = {};

  std::string tell_, text_;
  bool told_ = false;  // That the agent is waited for.
};

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_CORE_MEMBERSHIP_H_
