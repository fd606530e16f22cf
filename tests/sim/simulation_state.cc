// Who watches over the state that was trained: no generation starts anew beside
// it, none goes on with less of it than a living rank holds, and none counts
// who never had it.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace pactrain::sim {

SimTrainer* Simulation::FindTrainer(const protocol::Digest& attach_id) {
  for (Seat& seat : seats_) {
    if (seat.trainer->attach_id() == attach_id) return seat.trainer.get();
  }
  return nullptr;
}

// All who have come farthest in its lineage left in order and took that state
// along: nobody goes on from an older one (docs/protocol.md, 3). Who is between
// those and `holder` changes nothing: it lacks steps as well, so the lineage is
// over for it, too, whether it lives or is stopped.
bool Simulation::WasLeftBehind(const SimTrainer& holder) const {
  int farthest = holder.state().applied;
  bool left = false;  // All of them.
  const auto look = [&](const SimTrainer& other) {
    const RankState& state = other.state();
    if (state.lineage != holder.state().lineage || state.applied < farthest ||
        other.betrayed()) {
      return;
    }
    left = (left || state.applied > farthest) && other.LeftInOrder();
    farthest = state.applied;
  };
  look(holder);
  for (const Seat& seat : seats_) look(*seat.trainer);
  for (const auto& old : old_trainers_) look(*old);
  return left;
}

// The operator, who reads what newcomers are told and looks at the machines:
// who died with an agent that stays away is known to be dead to nobody else.
void Simulation::LookForLostState() {
  const bool lives =
      std::any_of(seats_.begin(), seats_.end(),
                  [](const Seat& seat) { return seat.trainer->TookPart(); });
  if (!lives && !killing_) coordinator_->Forget("job");
  PutLiarsOut();
  world_.After(absl::Seconds(10), [this] { LookForLostState(); });
}

// He does what the waiting are told: the machine is taken away, and comes back
// as a new one.
void Simulation::PutLiarsOut() {
  const bool told =
      std::any_of(seats_.begin(), seats_.end(), [](const Seat& seat) {
        return seat.trainer->alive() &&
               absl::StrContains(seat.trainer->waiting(), "evict AGENT");
      });
  if (!told || killing_) return;
  for (const size_t a : std::exchange(liars_, {})) {
    for (size_t i = 0; i < seats_.size(); ++i) {
      if (seats_[i].agent == a && seats_[i].trainer->alive()) KillOne(i);
    }
    CrashAgent(nullptr, a);
    coordinator_->Expel(agents_[a]->name());
  }
}

// Somebody at another agent comes back from the generation that this one's
// claim is of. A coordinator that was started since knows the newest alone.
bool Simulation::IsContradicted(const SimTrainer& liar,
                                const protocol::Generation& generation) {
  if (!coordinator_->Knows(liar.generation())) return false;
  for (const protocol::Member& member : generation.members) {
    const auto& ids = member.attach_ids;
    if (std::count(ids.begin(), ids.end(), liar.attach_id()) > 0) continue;
    for (const protocol::Digest& attach_id : ids) {
      const SimTrainer* other = FindTrainer(attach_id);
      if (other != nullptr && other->HoldsState() &&
          other->generation() == liar.generation()) {
        return true;
      }
    }
  }
  return false;
}

// Somebody at another agent has come as far, and with other parameters than
// this one's agent says. With another number or count only those that come from
// the same generation can be told; and who says one step more, with a number
// that nobody else has, may have made it.
bool Simulation::HasEqualBeside(const SimTrainer& liar,
                                const protocol::Generation& generation) {
  const SimAgent::OfParameters how = SimAgent::LieOf(liar.attach_id());
  const bool same_generation = how == SimAgent::OfParameters::kOtherNumber ||
                               how == SimAgent::OfParameters::kOtherCount;
  const bool same_number = how != SimAgent::OfParameters::kOtherNumber;
  if (same_generation &&
      (liar.state().applied == 0 || !coordinator_->Knows(liar.generation()))) {
    return false;
  }
  for (const protocol::Member& member : generation.members) {
    const auto& ids = member.attach_ids;
    if (std::count(ids.begin(), ids.end(), liar.attach_id()) > 0) continue;
    for (const protocol::Digest& attach_id : ids) {
      const SimTrainer* other = FindTrainer(attach_id);
      if (other == nullptr || !other->HoldsState() ||
          other->state().lineage != liar.state().lineage ||
          other->state().applied != liar.state().applied) {
        continue;
      }
      const bool fits =
          (!same_number || other->claimed_step() == liar.claimed_step()) &&
          (!same_generation || other->generation() == liar.generation());
      if (fits) return true;
    }
  }
  return false;
}

void Simulation::OnFormed(const protocol::Generation& generation) {
  oracle_->Formed(generation);
  if (!elastic()) return;
  std::string roster;
  const SimTrainer* donor = nullptr;
  for (const protocol::Member& member : generation.members) {
    for (size_t i = 0; i < member.ranks.size(); ++i) {
      if (forged_.contains(member.attach_ids[i])) {
        return world_.Fail(
            absl::StrCat("a forged claim counts: rank ", member.ranks[i],
                         " of generation ", generation.number,
                         generation.donor == member.ranks[i]
                             ? ", the donor, was never in the job"
                             : " was never in the job"));
      }
      const SimTrainer* trainer = FindTrainer(member.attach_ids[i]);
      if (trainer == nullptr) continue;
      if (generation.donor == member.ranks[i]) donor = trainer;
      absl::StrAppend(&roster, "\n            rank ", member.ranks[i], " at ",
                      member.agent, ": ", trainer->Name());
    }
  }
  world_.Say([&] {
    return absl::StrCat("journal: generation ", generation.number,
                        generation.donor
                            ? absl::StrCat(", donor ", *generation.donor)
                            : ", without donor",
                        roster);
  });
  if (donor != nullptr && overstated_.contains(donor->attach_id())) {
    if (IsContradicted(*donor, generation)) {
      return world_.Fail(absl::StrCat(
          "a claim that others contradict is believed: generation ",
          generation.number, " goes on from ", donor->Name()));
    }
    finished_ = true;  // Nobody could know.
    return;
  }
  if (donor != nullptr && falsified_.contains(donor->attach_id()) &&
      HasEqualBeside(*donor, generation)) {
    return world_.Fail(absl::StrCat(
        "parameters that others contradict are believed: generation ",
        generation.number, " goes on from ", donor->Name()));
  }
  if (donor != nullptr && donor->betrayed()) donor = nullptr;
  if (donor != nullptr && WasLeftBehind(*donor)) {
    return world_.Fail(absl::StrCat(
        "the state goes back: generation ", generation.number, " goes on from ",
        donor->Name(), ", while all who had come farther left in order"));
  }
  for (const Seat& seat : seats_) {
    const SimTrainer& holder = *seat.trainer;
    if (!holder.HoldsState()) continue;
    if (!generation.donor) {
      if (WasLeftBehind(holder)) continue;
      return world_.Fail(
          absl::StrCat("a start without donor beside living state: generation ",
                       generation.number, ", while ", holder.Name(), " at ",
                       agents_[seat.agent]->name(), " lives"));
    }
    if (donor == nullptr || holder.state().lineage != donor->state().lineage ||
        holder.state().applied <= donor->state().applied) {
      continue;
    }
    // Whoever is away for long may be gone on without, and finds out.
    const absl::Duration away = agents_[seat.agent]->unheard_for();
    if (away >= regroup_timeout_ || holder.stopped()) continue;
    return world_.Fail(
        absl::StrCat("the state goes back: generation ", generation.number,
                     " goes on from ", donor->Name(), ", while ", holder.Name(),
                     " at ", agents_[seat.agent]->name(),
                     " lives, whose agent the coordinator has not had for ",
                     absl::FormatDuration(away), " (it waits for ",
                     absl::FormatDuration(regroup_timeout_), ")"));
  }
}

// The last one that holds the newest state may not be turned away, unless
// somebody who left in order has a newer one.
void Simulation::OnRefused(const protocol::JoinRefused& refusal) {
  const SimTrainer* refused = FindTrainer(refusal.attach_id);
  if (refused != nullptr && !refused->betrayed() &&
      absl::StrContains(refusal.reason, "hold other parameters")) {
    return world_.Fail(absl::StrCat("honest parameters are refused: ",
                                    refused->Name(), ": ", refusal.reason));
  }
  if (!elastic() || refused == nullptr || !refused->HoldsState() ||
      IsStranded(refused->launch()) || WasLeftBehind(*refused)) {
    return;
  }
  const auto took_newer = [&](const SimTrainer& other) {
    return other.LeftInOrder() &&
           other.state().lineage == refused->state().lineage &&
           other.state().applied > refused->state().applied;
  };
  if (std::any_of(seats_.begin(), seats_.end(),
                  [&](const Seat& s) { return took_newer(*s.trainer); }) ||
      std::any_of(old_trainers_.begin(), old_trainers_.end(),
                  [&](const auto& old) { return took_newer(*old); })) {
    return;
  }
  for (const Seat& seat : seats_) {
    const SimTrainer& other = *seat.trainer;
    if (&other != refused && other.HoldsState() &&
        other.state().lineage >= refused->state().lineage &&
        other.state().applied >= refused->state().applied) {
      return;
    }
  }
  world_.Fail(absl::StrCat("the newest state is refused: ", refused->Name(),
                           ": ", refusal.reason));
}

}  // namespace pactrain::sim
