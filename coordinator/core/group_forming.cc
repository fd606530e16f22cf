// Generations begin and end; what those that wait for one are told.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/counted.h"
#include "base/weakened.h"
#include "coordinator/core/group.h"
#include "coordinator/core/planner.h"
#include "coordinator/core/policy.h"

namespace pactrain::coordinator {

using protocol::EndGeneration;
using protocol::Generation;
using protocol::GroupWaiting;
using protocol::Member;
using protocol::StartGeneration;

namespace {

// Null: nobody of it does.
const Candidate* FirstWithState(const Launch& launch) {
  const auto it =
      std::find_if(launch.by_rank.begin(), launch.by_rank.end(),
                   [](const auto& entry) { return HasState(entry.second); });
  return it == launch.by_rank.end() ? nullptr : &it->second;
}

// Attach ids are random, so there is no other one with this id. It tells the
// generation that it begins with: a coordinator that lost it sees what it lost.
protocol::Digest NewLineage(const Generation& generation,
                            const Lineup& lineup) {
  base::DigestBuilder digest;
  digest.Add(generation.group.job).Add(uint64_t{generation.group.model});
  digest.Add(generation.term).Add(generation.number);
  for (const Candidate& candidate : lineup.trainers) {
    digest.Add(candidate.trainer.attach_id);
  }
  return {digest.Build().hi, generation.number};
}

}  // namespace

void Group::TryForm(Context& c) {
  if (c.read_only) return;
  if (FirstLater(c) != nullptr && membership_.Replacing() == nullptr) return;
  bool lives = elastic() && !IsOver(generation_->lineage.id);
  if (lives && membership_.Replacing() == nullptr && NewestLeft(c)) {
    if (FirstMember(c) != nullptr) return;  // Who may have it, too.
    EndLineage("all that held its newest state left in order", c);
    RefuseOthers(c);
    lives = false;
  }
  if (!lives || membership_.Replacing() != nullptr) {
    TryFormNew(c);
  } else if (!running() &&
             NewestReturned(membership_.launches(), generation_->lineage.id)) {
    TryRegroup(c);
  } else if (running() && seats_.FirstHolder(c.options.presume_dead_after,
                                             c.now) != nullptr) {
    TryAdmit(c);
  } else {
    TryFormNew(c);
  }
}

// A launch as a new job, once nobody of the last one can be there any more.
void Group::TryFormNew(Context& c) {
  const Launch* launch = membership_.Replacing();
  if (launch == nullptr) launch = membership_.Complete();
  if (launch == nullptr || Holds(*launch, c) != nullptr) return;
  if (running()) {
    const std::string name = launch->name;
    End(launch->replaces()
            ? absl::StrCat("launch '", name, "' replaces the job")
            : absl::StrCat(
                  "launch '", name, "' takes over: nobody of launch '",
                  generation_->launch, "' has been heard for ",
                  absl::FormatDuration(elastic() ? c.options.presume_dead_after
                                                 : c.options.gone_after)),
        c);
    return;  // End() formed it.
  }
  if (!generation_ && FirstWithState(*launch) != nullptr) {
    return TryFormUnknown(*launch, c);
  }
  detached_.clear();
  Form(LineupOf(*launch), c);
}

Generation Group::MakeGeneration(const Lineup& lineup, Context& c) const {
  Generation generation;
  generation.group = id_;
  generation.term = c.term;
  generation.number = std::max(NextNumber(), c.first_generation);
  const protocol::Trainer& first =
      lineup.trainers[lineup.donor.value_or(0)].trainer;
  generation.world_size = static_cast<uint32_t>(lineup.trainers.size());
  generation.launch = first.launch;
  generation.on_shrink = first.on_shrink;
  generation.onset = lineup.trainers[0].trainer.onset;
  generation.donor = lineup.donor;
  generation.needs_state = lineup.needs_state;
  generation.base_step = std::max(SafeNextStep(), lineup.next_step);
  generation.lineage = lineup.lineage;
  if (!lineup.donor) generation.lineage.id = NewLineage(generation, lineup);
  std::map<std::pair<std::string, std::string>, Member> members;
  std::set<std::string> sites;
  for (uint32_t rank = 0; rank < generation.world_size; ++rank) {
    const Candidate& candidate = lineup.trainers[rank];
    const Agent& agent = *c.agents.Find(candidate.agent);
    Member& member = members[{agent.site, agent.name}];
    member.agent = agent.name;
    member.incarnation = agent.incarnation;
    member.site = agent.site;
    member.data_address = agent.data_address;
    member.proves = agent.proves;
    member.ranks.push_back(rank);
    member.attach_ids.push_back(candidate.trainer.attach_id);
    sites.insert(agent.site);
  }
  for (auto& [key, member] : members)
    generation.members.push_back(std::move(member));
  generation.sites.assign(sites.begin(), sites.end());
  if (const auto odd = OddSiteRates(generation.sites, c.options.site_rates)) {
    c.effects.Warn(absl::StrCat("job ", id_.ToString(), ": ", *odd));
  }
  generation.plan =
      MakePlan(generation.sites, c.options.links, c.options.site_rates);
  // Who hands on secrets is not of the release before, and knows such chunks.
  generation.plan.even_chunks =
      std::all_of(generation.members.begin(), generation.members.end(),
                  [](const Member& member) { return member.proves; });
  return generation;
}

void Group::Form(const Lineup& lineup, Context& c) {
  Generation generation = MakeGeneration(lineup, c);
  const bool replaces = std::all_of(
      lineup.trainers.begin(), lineup.trainers.end(),
      [](const Candidate& candidate) { return candidate.trainer.replace; });
  const char* const how = replaces
                              ? "replaced it on purpose"
                              : "began anew when all who held it were gone";
  votes_ = MaskVotes(generation.world_size);
  // Who has the state of an earlier generation may want other masks by now.
  if (!generation.donor) Poll(lineup);
  generation.decision = decisions_.Start(FirstDecision(generation, c));
  needed_before_ = generation.donor ? MakeRemains(c).needed : std::nullopt;
  Seats seats(generation);
  if (generation.donor) {
    seats.Carry(seats_);
  } else if (generation_ && elastic() && !IsOver(generation_->lineage.id)) {
    EndLineage(absl::StrCat("launch '", generation.launch, "' of ",
                            generation.world_size, " ranks ", how,
                            " with generation ", generation.number),
               c);
  }
  seats_ = std::move(seats);
  roster_.clear();
  for (const Candidate& candidate : lineup.trainers) {
    roster_[candidate.trainer.attach_id] = candidate;
  }
  membership_.Remove(lineup.trainers);
  mask_state_ = MaskState::kMissing;
  last_equal_ = {};
  restless_told_ = false;
  logged_mask_ = logged_layout_ = {};
  refused_.reset();
  NoteConnected(/*anew=*/!generation.donor);
  std::map<AgentPair, int> apart;
  for (const auto& [pair, why] : unreached_.members()) {
    if (progress_.committed_count() == 0) apart[pair] = apart_[pair] + 1;
  }
  apart_ = std::move(apart);
  unreached_ = {};
  committed_before_ += progress_.committed_count();
  failed_before_ += progress_.failed_attempts();
  for (size_t cause = 0; cause < protocol::kCauses; ++cause) {
    failed_by_cause_before_[cause] += progress_.failed_by_cause()[cause];
  }
  progress_ = {};
  account_.BeginGeneration();
  noise_ = Noise(generation);
  norms_.Begin(generation.members, /*anew=*/!generation.donor);
  noise_factor_ = kUnmeasuredNoiseFactor;
  in_force_unknown_ = false;
  last_step_known_ = false;
  detached_at_.reset();
  end_due_.reset();
  ended_ = false;
  for (const Member& member : generation.members)
    waiting_told_.erase(member.agent);
  generation_ = std::move(generation);
  NoteOwners();
  testimony_.Begin(*generation_);
  first_words_.clear();
  if (!PT_WEAKENED(GenerationNotJournaled)) {
    c.effects.records.push_back(GenerationFormed{*generation_, {}});
    if (!PT_WEAKENED(LeftBehindNotJournaled)) {
      std::get<GenerationFormed>(c.effects.records.back()).away = seats_.Away();
    }
  }
  recorded_.ranks.clear();
  if (!generation_->donor) recorded_.of_launch.clear();
  RecordDetached(c);
  reserved_step_ = generation_->base_step + kReserveSteps;
  SendToMembers(StartGeneration{*generation_}, c);
  c.effects.Log(absl::StrCat(
      "job ", id_.ToString(), ": generation ", generation_->number,
      " of launch '", generation_->launch, "' with ",
      base::Counted(generation_->world_size, "trainer"), " at ",
      base::Counted(generation_->members.size(), "agent"), " in ",
      base::Counted(generation_->sites.size(), "site"), " from step ",
      generation_->base_step,
      generation_->donor
          ? absl::StrCat(", with the state of rank ", *generation_->donor,
                         " after ", generation_->lineage.committed, " steps")
          : ""));
  if (!generation_->donor) RefuseOthers(c);
}

// What trainers declared as they attached counts as their votes.
void Group::Poll(const Lineup& lineup) {
  for (uint32_t rank = 0; rank < lineup.trainers.size(); ++rank) {
    const protocol::Declared& declared = lineup.trainers[rank].trainer.declared;
    if (declared.elements == 0) continue;
    protocol::MaskVote vote;
    vote.rank = rank;
    vote.mask_digest = declared.mask_digest;
    vote.layout_digest = declared.layout_digest;
    vote.steps_unchanged = 1;
    vote.kept_elements = declared.kept_elements;
    vote.elements = declared.elements;
    PT_CHECK(votes_.Add(vote, /*step=*/0).ok());
  }
}

// By value: the reason may be end_due_ itself, which is reset here.
void Group::End(std::string reason, Context& c) {
  if (c.read_only && !PT_WEAKENED(EndWhileReadOnly)) {
    end_due_ = reason;
    return;
  }
  ended_ = true;
  end_due_.reset();
  end_reason_ = reason;
  ended_at_ = c.now;
  NoteMode(c);  // A mode's seconds end here, not at the next tick.
  decisions_.Revoke();
  if (!PT_WEAKENED(EndNotJournaled)) {
    c.effects.records.push_back(
        GenerationEnded{id_, generation_->number, reason, SafeNextStep()});
  }
  SendToMembers(EndGeneration{id_, generation_->number, reason}, c);
  c.effects.Log(absl::StrCat("job ", id_.ToString(), ": generation ",
                             generation_->number, " ended: ", reason));
  TryForm(c);
}

uint64_t Group::NextStep() const {
  // Nobody commits one before.
  const uint64_t first = generation_->base_step;
  if (progress_.committed_count() > 0) {
    return std::max(first, progress_.committed_step() + 1);
  }
  if (progress_.any()) return first;
  return reserved_step_;
}

uint64_t Group::SafeNextStep() const {
  if ((last_step_known_ || PT_WEAKENED(LastStepTakenForKnown)) &&
      progress_.any()) {
    return NextStep();
  }
  if (PT_WEAKENED(ReservedStepsReused)) return NextStep();
  return std::max(reserved_step_, NextStep());
}

std::string Group::WaitingReason(const Context& c) const {
  if (const Candidate* later = FirstLater(c)) return LaterText(*later);
  if (elastic() && !c.read_only) {
    const std::string reason = RegroupReason(c);
    if (!reason.empty()) return absl::StrCat(reason, OtherSites());
  }
  const Launch* launch = membership_.Complete();
  if (launch == nullptr) {
    return absl::StrCat(membership_.WaitingReason(), OtherSites());
  }
  if (c.read_only)
    return "the coordinator's journal cannot be written; see its log";
  const Seats::Seat* held = Holds(*launch, c);
  if (const Candidate* first = FirstWithState(*launch);
      first != nullptr && !generation_) {
    const auto dispute = FirstDispute({*launch}, first->trainer.lineage.id);
    if (dispute && dispute->is_open) return dispute->text;
  }
  if (held == nullptr) return "forming a generation";
  if (elastic()) return HoldsReason(*held, c);
  return absl::StrCat("waiting for ", SeatText(*held), " of launch '",
                      generation_->launch, "' to end: generation ",
                      generation_->number, ended_ ? " is over" : " still runs");
}

std::string Group::OtherSites() const {
  if (!generation_ || !NamesSites(generation_->launch)) return "";
  for (const Launch& launch : membership_.launches()) {
    if (!NamesSites(launch.name) || launch.name == generation_->launch) {
      continue;
    }
    return absl::StrCat(
        "; launch '", launch.name, "' names other sites than launch '",
        generation_->launch,
        "', which this job runs with: set PACTRAIN_SITES to the same value, or "
        "unset it to join as a newcomer");
  }
  return "";
}

void Group::SendWaiting(Context& c) {
  if (membership_.empty()) return;
  const std::string reason = WaitingReason(c);
  for (const std::string& name : membership_.AgentNames()) {
    std::string& told = waiting_told_[name];
    if (told == reason) continue;
    told = reason;
    c.effects.sends.push_back(
        {c.agents.Find(name)->stream, GroupWaiting{id_, reason}});
  }
}

}  // namespace pactrain::coordinator
