// Who is believed: a state counts, and a seat is taken again, where whoever
// says so shows that it had that seat.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/weakened.h"
#include "coordinator/core/group.h"
#include "coordinator/core/likeness.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

std::string Text(const Candidate& candidate) {
  const protocol::Trainer& trainer = candidate.trainer;
  std::string text =
      absl::StrCat("rank ", trainer.rank, " (agent '", candidate.agent,
                   "', site '", candidate.site, "') ");
  if (!HasState(candidate)) {
    return absl::StrCat(text, "says that it is one that had a seat before");
  }
  return absl::StrCat(text, "claims a state of lineage ",
                      trainer.lineage.id.Short(), " after ",
                      trainer.lineage.committed,
                      " steps, of a seat in "
                      "generation ",
                      trainer.last_generation);
}

std::string AgainstText(const Testimony::Words& words) {
  return absl::StrCat(", and by the word of agent '",
                      absl::StrJoin(words.against, "', '"),
                      "' nobody of it can have come so far");
}

constexpr char kWhatToDo[] =
    ". Nothing of it was taken or changed. Who has that state saves it and "
    "starts all ranks again from it, with PACTRAIN_REPLACE=1; else start it as "
    "a newcomer";
constexpr char kComputesWrongly[] =
    ". Nothing of it was taken or changed. Its node computes wrongly (look at "
    "its memory, or GPU), or its agent says what is not so. Start it again as "
    "a newcomer, elsewhere";

}  // namespace

// Who waits trains no step, and says the same however often it attaches.
std::optional<std::string> Group::WhyNotItsFirstWord(
    const Candidate& candidate) const {
  const protocol::Trainer& trainer = candidate.trainer;
  const auto said = first_words_.find(trainer.attach_id.hi);
  if (!HasState(candidate) || said == first_words_.end() ||
      !said->second.proven) {
    return std::nullopt;
  }
  const protocol::Trainer& before = said->second.trainer;
  if (before.lineage.id != trainer.lineage.id) return std::nullopt;
  const bool same =
      ReachedBy(said->second) == ReachedBy(candidate) &&
      (before.parameters.empty() || before.parameters == trainer.parameters);
  if (same) return std::nullopt;
  return absl::StrCat(Text(candidate), ", and has said before that it has ",
                      before.parameters.Short(), " after ",
                      before.lineage.committed, kWhatToDo);
}

std::optional<std::string> Group::WhyUnproven(
    const Candidate& candidate) const {
  if (PT_WEAKENED(UnprovenClaimsCount)) return std::nullopt;
  const protocol::Trainer& trainer = candidate.trainer;
  const Seats::Seat* const seat = seats_.FindAnyOf(trainer.attach_id);
  // Its agent might as well say that it has left.
  const bool is_own =
      seat != nullptr && seats_.MemberOf(*seat).agent == candidate.agent;
  const char* why = ", and has no proof of it";
  if (auto changed = WhyNotItsFirstWord(candidate)) return changed;
  if (!HasState(candidate)) {
    if (seat == nullptr || is_own || candidate.proven) return std::nullopt;
  } else {
    // What can be believed then is seen when the launch is complete.
    if (!generation_) return std::nullopt;
    // Nobody who was there can prove more: that seat was told no secret.
    const bool was_told = !is_own || seats_.MemberOf(*seat).proves;
    if (trainer.proof.empty() && !was_told) return std::nullopt;
    const bool begun = BegunWith(trainer) <= trainer.last_generation;
    if (candidate.proven && begun) return std::nullopt;
    if (candidate.proven) {
      why = ", before that lineage began";
    } else if (!trainer.proof.empty()) {
      why = ", and its proof is not of that seat's secret";
    }
  }
  return absl::StrCat(Text(candidate), why, kWhatToDo);
}

// A journal that was lost proves nothing, so what it lacks is believed as it is
// said. But what is proven goes before it, and no agent is believed alone
// beside others that hold nothing: that would be a way into a job that is about
// to begin.
std::vector<Membership::Refusal> Group::Unbelieved(const Launch& launch) const {
  std::set<std::string> holding, lacking;
  bool any_proven = false;
  for (const auto& [rank, candidate] : launch.by_rank) {
    (HasState(candidate) ? holding : lacking).insert(candidate.agent);
    any_proven = any_proven || (HasState(candidate) && candidate.proven);
  }
  for (const std::string& agent : holding) lacking.erase(agent);
  const bool is_alone = holding.size() == 1 && !lacking.empty();
  if ((!any_proven && !is_alone) || PT_WEAKENED(UnprovenClaimsCount)) return {};
  std::vector<Membership::Refusal> refusals;
  for (const auto& [rank, candidate] : launch.by_rank) {
    if (!HasState(candidate) || candidate.proven) continue;
    refusals.push_back(
        {candidate,
         absl::StrCat(
             Text(candidate),
             ", of which the coordinator's journal knows nothing, and ",
             any_proven ? "others of its launch prove theirs"
                        : "other agents of its launch hold none",
             kWhatToDo)});
  }
  return refusals;
}

// A lie that its seat's secret does not show. Agents count, as each speaks for
// all of its ranks.
std::optional<std::string> Group::WhyRefuted(
    const Candidate& candidate, const std::vector<Launch>& launches,
    const std::optional<Reached>& newest) const {
  if (!HasState(candidate) || PT_WEAKENED(ContradictedClaimsCount)) return {};
  // It waited as its newest generation was formed, with the state that it says
  // to have still; that one began with the newest state of all.
  const Reached reached = ReachedBy(candidate);
  if (candidate.proven && generation_ &&
      candidate.trainer.last_generation < generation_->number &&
      seats_.FindTrainer(candidate.trainer.attach_id) != nullptr &&
      (reached.first > generation_->lineage.committed ||
       reached.second > generation_->base_step)) {
    return absl::StrCat(Text(candidate), ", and generation ",
                        generation_->number, ", which it waited for, began ",
                        "after ", generation_->lineage.committed, kWhatToDo);
  }
  const Testimony::Words words = testimony_.On(candidate);
  if (words.refuted()) {
    return absl::StrCat(Text(candidate), AgainstText(words), kWhatToDo);
  }
  if (reached != newest) return std::nullopt;
  const Likeness likeness =
      LikenessOf(candidate, Witnesses(candidate, launches), testimony_);
  if (!likeness.refuted) return std::nullopt;
  return absl::StrCat(Text(candidate), likeness.text, kComputesWrongly);
}

// Of its own agent only what waits: whoever ends a rank of it has chosen.
std::vector<const Candidate*> Group::Witnesses(
    const Candidate& candidate, const std::vector<Launch>& launches) const {
  std::vector<const Candidate*> all;
  std::set<std::pair<uint64_t, std::string>> waiting;
  for (const Candidate* other : AllOf(launches)) {
    if (!HasState(*other)) continue;
    all.push_back(other);
    if (!first_words_.empty()) {
      waiting.emplace(other->trainer.attach_id.hi, other->agent);
    }
  }
  for (const auto& [id, other] : first_words_) {
    if (other.agent != candidate.agent &&
        !waiting.contains({id, other.agent})) {
      all.push_back(&other);
    }
  }
  return all;
}

void Group::NoteFirstWord(const Candidate& candidate) {
  const uint64_t id = candidate.trainer.attach_id.hi;
  if (first_words_.size() >= static_cast<size_t>(protocol::kMaxRanks) &&
      !first_words_.contains(id)) {
    return;
  }
  const auto [it, is_new] = first_words_.try_emplace(id, candidate);
  Candidate& said = it->second;
  // An agent that was upgraded meanwhile says a digest where it had none.
  if (said.trainer.parameters.empty()) {
    said.trainer.parameters = candidate.trainer.parameters;
  }
  if (is_new || said.agent == candidate.agent || !candidate.proven) return;
  // Its node's agent has another name by now, and is one agent still.
  const std::string before = said.agent;
  for (auto& [other, word] : first_words_) {
    if (word.agent == before) word.agent = candidate.agent;
  }
}

std::set<std::string> Group::ClaimingAgents() const {
  std::set<std::string> names;
  for (const auto& [id, said] : first_words_) names.insert(said.agent);
  return names;
}

bool Group::SettleClaims(const std::vector<Launch>& launches,
                         const protocol::Digest& lineage, Context& c) {
  const auto newest = NewestReturned(launches, lineage);
  std::vector<Membership::Refusal> refuted;
  std::vector<Candidate> out;
  for (const Candidate* candidate : AllOf(launches)) {
    if (const auto why = WhyRefuted(*candidate, launches, newest)) {
      refuted.push_back({*candidate, *why});
      out.push_back(*candidate);
    }
  }
  for (const Candidate& candidate : out) {
    seats_.Return(candidate.trainer.attach_id, c.now, Seats::State::kKeptOut);
  }
  membership_.Remove(out);
  Refuse(refuted, c);
  const auto dispute = FirstDispute(launches, lineage);
  const std::string text = dispute ? dispute->text : "";
  if (!text.empty() && text != dispute_told_) {
    c.effects.Warn(absl::StrCat("job ", id_.ToString(), ": ", text));
  }
  dispute_told_ = text;
  return out.empty() && !(dispute && dispute->is_open);
}

std::optional<Group::Dispute> Group::FirstDispute(
    const std::vector<Launch>& launches,
    const protocol::Digest& lineage) const {
  const auto newest = NewestReturned(launches, lineage);
  std::optional<Dispute> settled;
  for (const Candidate* waiting : AllOf(launches)) {
    const Candidate& candidate = *waiting;
    if (!HasState(candidate) || ReachedBy(candidate) != newest) continue;
    const Likeness likeness =
        LikenessOf(candidate, Witnesses(candidate, launches), testimony_);
    if (likeness.disputed && !likeness.refuted) {
      return Dispute{
          absl::StrCat(
              Text(candidate), likeness.text,
              ". A node computes wrongly, or an agent says what is not so, "
              "and none is believed alone: nothing is formed. Find out "
              "which, and put it out: pactrain-admin evict AGENT (where it "
              "is "
              "ranks of one agent that differ: end the wrong ones); or start "
              "all ranks again from the last checkpoint, with "
              "PACTRAIN_REPLACE=1"),
          /*is_open=*/true};
    }
    const Testimony::Words words = testimony_.On(candidate);
    if (words.against.empty()) continue;
    const Dispute dispute = {
        absl::StrCat(
            Text(candidate), AgainstText(words),
            words.disputed()
                ? ". One of these agents says what is not so, and none is "
                  "believed alone: nothing is formed. See in their ranks' "
                  "logs which one, and put it out: pactrain-admin evict AGENT"
                : ". The other agents say what it does, and are believed"),
        words.disputed()};
    if (dispute.is_open) return dispute;
    if (!settled) settled = dispute;
  }
  return settled;
}

}  // namespace pactrain::coordinator
