// Whose state a job's is: lineages begin and end.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/weakened.h"
#include "coordinator/core/group.h"

namespace pactrain::coordinator {

using protocol::JoinRefused;
using protocol::Lineage;

namespace {

// The newest that it names.
uint64_t NewestOf(const protocol::Trainer& trainer) {
  return trainer.last_generation < kMaxNumber
             ? std::max(BegunWith(trainer), trainer.last_generation)
             : BegunWith(trainer);
}

// False where one of them tells none.
bool Predates(const protocol::Trainer& trainer, const Lineage& other) {
  const uint64_t begun = BegunWith(trainer);
  return begun > 0 && begun < other.id.lo && other.id.lo < kMaxNumber;
}

std::string Text(const Lineage& lineage) {
  return absl::StrCat("a state of lineage ", lineage.id.Short(), " after ",
                      lineage.committed, " steps");
}

}  // namespace

bool Group::IsOver(const protocol::Digest& lineage) const {
  return std::any_of(ended_lineages_.begin(), ended_lineages_.end(),
                     [&](const auto& end) { return end.lineage == lineage; });
}

std::optional<std::string> Group::WhyOver(const Candidate& candidate,
                                          const Context& c) const {
  if (!HasState(candidate) || !generation_ || PT_WEAKENED(OverMayReturn)) {
    return std::nullopt;
  }
  const Lineage& lineage = candidate.trainer.lineage;
  const std::string holds =
      absl::StrCat("rank ", candidate.trainer.rank, " holds ", Text(lineage));
  for (const LineageEnded& end : ended_lineages_) {
    if (end.lineage != lineage.id) continue;
    return absl::StrCat(holds, ", which is over: ", end.how, " at ", end.at);
  }
  if (lineage.id == generation_->lineage.id || IsLater(candidate, c)) {
    return std::nullopt;
  }
  return absl::StrCat(holds, ", of which this job knows nothing: its own is ",
                      Text(generation_->lineage), ", of launch '",
                      generation_->launch, "' since generation ",
                      generation_->number);
}

void Group::TakeUpUnknown(const Candidate& candidate, Context& c) {
  const protocol::Digest& lineage = candidate.trainer.lineage.id;
  if (!HasState(candidate) || !elastic() || c.read_only ||
      generation_->number >= c.first_generation ||
      lineage == generation_->lineage.id || IsOver(lineage) ||
      Predates(candidate.trainer, generation_->lineage)) {
    return;
  }
  if (!IsOver(generation_->lineage.id)) {
    EndLineage(absl::StrCat("rank ", candidate.trainer.rank, " holds ",
                            Text(candidate.trainer.lineage),
                            ", which began after the backup that was restored"),
               c);
  }
  generation_->lineage = {lineage, 0};
  if (running()) End("a backup from before the job's lineage was restored", c);
}

// After a restore on purpose what is later is taken up. Another lineage that
// began with a generation that the journal knows is of another copy, which went
// its own way.
bool Group::IsLater(const Candidate& candidate, const Context& c) const {
  const protocol::Trainer& trainer = candidate.trainer;
  if (!generation_ || !HasState(candidate) || IsOver(trainer.lineage.id) ||
      generation_->number < c.first_generation ||
      PT_WEAKENED(LaterStateNotNoticed)) {
    return false;
  }
  const bool known = trainer.lineage.id == generation_->lineage.id;
  return (known ? NewestOf(trainer) : BegunWith(trainer)) > generation_->number;
}

const Candidate* Group::FirstLater(const Context& c) const {
  for (const Candidate* candidate : AllOf(membership_.launches())) {
    if (IsLater(*candidate, c)) return candidate;
  }
  return nullptr;
}

std::string Group::LaterText(const Candidate& later) const {
  return absl::StrCat(
      "THE STATE DIRECTORY IS AN OLDER COPY: rank ", later.trainer.rank,
      " (agent '", later.agent, "', site '", later.site, "') holds ",
      Text(later.trainer.lineage), ", of generation ", NewestOf(later.trainer),
      ", and the newest that the coordinator's state directory has is ",
      generation_->number,
      " (was a backup restored?). Nothing is formed in this job. Start the "
      "coordinator on the newest state directory and then all agents anew, "
      "since they follow the older one; if it is lost, the coordinator with "
      "--restore on the newest backup. If this is the right one, end that "
      "rank, or start all ranks again with PACTRAIN_REPLACE=1");
}

uint64_t Group::NextNumber() const {
  uint64_t newest = generation_ ? generation_->number : 0;
  for (const Candidate* candidate : AllOf(membership_.launches())) {
    // Nobody believed the word of others.
    if (!HasState(*candidate) && !candidate->proven) continue;
    newest = std::max(newest, NewestOf(candidate->trainer));
  }
  return newest + 1;
}

void Group::RefuseOver(const Candidate& candidate, const std::string& reason,
                       Context& c) {
  const Agent* agent = c.agents.Find(candidate.agent);
  if (agent == nullptr || !agent->connected()) return;
  c.effects.Warn(absl::StrCat("job ", id_.ToString(), ": ", reason));
  c.effects.sends.push_back(
      {agent->stream, JoinRefused{id_, candidate.trainer.rank,
                                  candidate.trainer.attach_id, reason, true}});
}

void Group::RefuseOthers(Context& c) {
  std::vector<Candidate> others;
  for (const Candidate* candidate : AllOf(membership_.launches())) {
    if (const auto over = WhyOver(*candidate, c)) {
      RefuseOver(*candidate, *over, c);
      others.push_back(*candidate);
    }
  }
  membership_.Remove(others);
}

const Seats::Seat* Group::Holds(const Launch& launch, const Context& c) const {
  if (!generation_ || launch.replaces()) return nullptr;
  if (!elastic()) {
    return seats_.FirstHeld(c.agents, c.options.gone_after, c.now);
  }
  if (IsOver(generation_->lineage.id) || PT_WEAKENED(BeginsBesideTheLiving)) {
    return nullptr;
  }
  return seats_.FirstHolder(c.options.presume_dead_after, c.now);
}

std::string Group::HoldsReason(const Seats::Seat& seat,
                               const Context& c) const {
  if (seat.state != Seats::State::kAwaited && seats_.IsHeard(seat, c.agents)) {
    return absl::StrCat(
        SeatText(seat), " lives, as its agent says, and may hold this job's ",
        "state",
        seat.state == Seats::State::kStraggled ? "; it was too slow" : "",
        ended_ ? absl::StrCat("; generation ", generation_->number,
                              " is over since ", c.TimeText(ended_at_))
               : "",
        ". Waiting for it, and joining it then. If it hangs, end its process, "
        "or start all ranks again with PACTRAIN_REPLACE=1");
  }
  const absl::Duration limit = c.options.presume_dead_after;
  return absl::StrCat(
      SeatText(seat), " may hold this job's state and train on",
      seat.silent_since ? absl::StrCat("; it is out of sight since ",
                                       c.TimeText(*seat.silent_since))
                        : "",
      ". Waiting for it, and joining it then",
      limit == absl::InfiniteDuration()
          ? ""
          : absl::StrCat(" (for ", absl::FormatDuration(limit),
                         ", --presume-dead-after)"),
      ". If it is gone for good: `pactrain-admin forget ", id_.job,
      "`, or start all ranks again with PACTRAIN_REPLACE=1");
}

void Group::EndLineage(std::string how, Context& c) {
  LineageEnded end = {id_, generation_->lineage.id, std::move(how),
                      c.TimeText(c.now)};
  c.effects.Warn(absl::StrCat("job ", id_.ToString(), ": ",
                              Text(generation_->lineage),
                              " is over: ", end.how));
  if (!PT_WEAKENED(EndOfLineageNotJournaled)) c.effects.records.push_back(end);
  first_words_.clear();
  ended_lineages_.insert(ended_lineages_.begin(), std::move(end));
  if (ended_lineages_.size() > kMaxHistory) ended_lineages_.pop_back();
}

bool Group::NewestLeft(const Context& c) const {
  if (running() || PT_WEAKENED(NewestMayHaveLeft)) return false;
  const auto newest =
      NewestReturned(membership_.launches(), generation_->lineage.id);
  // Nobody has returned, and who still may is of an earlier generation.
  const bool all_lack_a_step =
      !newest && FirstMember(c) == nullptr &&
      seats_.FirstHolder(c.options.presume_dead_after, c.now) != nullptr;
  if (!newest && !all_lack_a_step) return false;
  const std::vector<const Seats::Seat*> left = seats_.LeftInOrder();
  const auto& needed = generation_->needs_state;
  return std::any_of(left.begin(), left.end(), [&](const Seats::Seat* seat) {
    const auto step = CommittedBy(*seat, c);
    // An agent's word alone ends no state that others have.
    const bool disputed = step && testimony_
                                      .On(seats_.MemberOf(*seat).agent,
                                          generation_->number, {0, *step + 1})
                                      .disputed();
    if (step && !disputed && (!newest || newest->second <= *step)) return true;
    const bool had_state =
        std::find(needed.begin(), needed.end(), seat->rank) == needed.end();
    return newest && had_state &&
           newest->first < generation_->lineage.committed;
  });
}

// Its agent has said how far it came before it said that it left. Others'
// words count what they voted for, too, which may have come to nothing.
std::optional<uint64_t> Group::CommittedBy(const Seats::Seat& left,
                                           const Context& c) const {
  // It attached again before it left, and said what it holds.
  if (const auto said = first_words_.find(left.attach_id.hi);
      said != first_words_.end() && said->second.proven &&
      said->second.trainer.resume_step > 0) {
    return said->second.trainer.resume_step - 1;
  }
  const protocol::Member& member = seats_.MemberOf(left);
  const Agent* const agent = c.agents.Find(member.agent);
  const Progress::Word* const word = progress_.Of(member.agent);
  if (word != nullptr && agent != nullptr &&
      agent->incarnation == member.incarnation &&
      !PT_WEAKENED(LeaversHaveWhatOthersVotedFor)) {
    return word->committed_count > 0 ? std::optional(word->committed_step)
                                     : std::nullopt;
  }
  return progress_.committed_count() > 0
             ? std::optional(progress_.committed_step())
             : std::nullopt;
}

const Seats::Seat* Group::FirstMember(const Context& c) const {
  const Seats::Seat* const seat =
      seats_.FirstHolder(c.options.presume_dead_after, c.now);
  return seat == nullptr ? nullptr : seats_.Find(seat->attach_id);
}

absl::Status Group::CheckForget(const Context& c) const {
  size_t alive = seats_.CountHolders(c.agents);
  for (const Candidate* candidate : AllOf(membership_.launches())) {
    alive += HasState(*candidate);
  }
  if (alive > 0 && !PT_WEAKENED(ForgottenInSight)) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", id_.ToString(), "' has ", alive,
                     alive == 1 ? " live rank" : " live ranks",
                     " with its state: end them first, or start its next "
                     "launch with PACTRAIN_REPLACE=1"));
  }
  return absl::OkStatus();
}

void Group::Forget(const std::string& by, Context& c) {
  if (!elastic() || IsOver(generation_->lineage.id)) return;
  EndLineage(absl::StrCat(by, " forgot it (pactrain-admin forget)"), c);
  if (running()) End(absl::StrCat(by, " forgot the job"), c);
  TryForm(c);
}

void Group::TryFormUnknown(const Launch& launch, Context& c) {
  if (const auto unbelieved = Unbelieved(launch); !unbelieved.empty()) {
    std::vector<Candidate> out;
    for (const Membership::Refusal& refusal : unbelieved) {
      out.push_back(refusal.candidate);
    }
    membership_.Remove(out);
    return Refuse(unbelieved, c);
  }
  const Candidate* newest = nullptr;
  for (const auto& [rank, candidate] : launch.by_rank) {
    if (HasState(candidate) &&
        (newest == nullptr || (candidate.trainer.lineage.committed >
                                   newest->trainer.lineage.committed &&
                               !PT_WEAKENED(FirstUnknownLineageWins)))) {
      newest = &candidate;
    }
  }
  const Lineage lineage = newest->trainer.lineage;
  std::vector<Candidate> others;
  for (const auto& [rank, candidate] : launch.by_rank) {
    if (!HasState(candidate) || candidate.trainer.lineage.id == lineage.id) {
      continue;
    }
    RefuseOver(
        candidate,
        absl::StrCat("rank ", rank, " holds ", Text(candidate.trainer.lineage),
                     ", and rank ", newest->trainer.rank, " ", Text(lineage),
                     ", which has come farther"),
        c);
    others.push_back(candidate);
  }
  if (!others.empty()) return membership_.Remove(others);
  if (!SettleClaims({launch}, lineage.id, c)) return;
  Remains remains;
  remains.lineage = lineage.id;
  remains.on_shrink = newest->trainer.on_shrink;
  remains.ranks = launch.world_size();
  const NextLineup next = MakeNextLineup({launch}, remains);
  if (next.lineup) Form(*next.lineup, c);
}

}  // namespace pactrain::coordinator
