// What travels: mask votes in, decisions out.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/counted.h"
#include "base/weakened.h"
#include "coordinator/core/group.h"
#include "coordinator/core/policy.h"

namespace pactrain::coordinator {
using protocol::Decision;

void Group::OnVote(const Agent& agent, const protocol::MaskVote& vote,
                   Context& c) {
  if (!running() || vote.generation != generation_->number ||
      votes_.Has(vote)) {
    return;
  }
  const protocol::Member* member = FindMember(agent);
  if (member == nullptr ||
      std::count(member->ranks.begin(), member->ranks.end(), vote.rank) == 0) {
    c.effects.Warn(absl::StrCat("job ", id_.ToString(), ": agent '", agent.name,
                                "' sent a mask vote of rank ", vote.rank,
                                ", which is not its own; ignored"));
    return;
  }
  const absl::StatusOr<bool> changed =
      votes_.Add(vote, progress_.committed_count());
  if (changed.ok() && *changed) refused_.reset();
  Decide(c);
}

void Group::ReserveSteps(Context& c) {
  // After the end the exact step is known better than it was when logged.
  const uint64_t ahead = ended_ ? 0 : kReserveSteps;
  if (c.read_only || reserved_step_ >= NextStep() + ahead / 2) return;
  reserved_step_ = NextStep() + ahead;
  if (!PT_WEAKENED(StepsNotJournaled)) {
    c.effects.records.push_back(StepsReserved{id_, reserved_step_});
  }
}

void Group::OnReport(const Agent& agent, const protocol::StepReport& report,
                     Context& c) {
  if (!generation_) return;
  if (report.generation != generation_->number &&
      !PT_WEAKENED(ReportsOfOldGenerations)) {
    return;
  }
  const protocol::Member* const member = FindMember(agent);
  if (member == nullptr) return;
  progress_.Add(agent.name, agent.site, report);
  account_.Add(agent.name, report);
  if (report.keep_by_parameter) {
    keep_ = std::make_shared<const protocol::KeepByParameter>(
        *report.keep_by_parameter);
  }
  NoteNoise(report, agent.name);
  WatchNorms(report, *member, c);
  if (in_force_unknown_) {
    // Steps before this coordinator's start; together with theirs below 0.
    committed_before_ -= progress_.committed_count();
    failed_before_ -= progress_.failed_attempts();
    for (size_t cause = 0; cause < protocol::kCauses; ++cause) {
      failed_by_cause_before_[cause] -= progress_.failed_by_cause()[cause];
    }
    in_force_unknown_ = false;
  }
  ReserveSteps(c);
  if (!running()) return;
  if (decisions_.SetInForce(progress_.version_in_force())) {
    const Decision& now = decisions_.in_force();
    c.effects.Log(absl::StrCat("job ", id_.ToString(), ": decision ",
                               now.version, " (", protocol::ModeName(now.mode),
                               " ", protocol::CodecName(now.codec),
                               ") is in force: ", now.reason));
  }
  NoteMode(c);
  Decide(c);
}

void Group::OnAnswer(const Agent& agent, const protocol::PrepareAnswer& answer,
                     Context& c) {
  if (!running() || answer.generation != generation_->number) return;
  const auto& prepared = decisions_.prepared();
  if (!prepared || prepared->version != answer.version || answer.accepted)
    return;
  if (FindMember(agent) == nullptr || c.read_only) return;
  const std::string reason =
      absl::StrCat("agent '", agent.name, "' (site '", agent.site,
                   "') refused it: ", answer.reason);
  refused_ = Refused{*prepared, progress_.committed_count(), reason};
  Revoke(reason, c);
  Decide(c);
}

void Group::NoteMasks(const MaskAgreement& masks, Context& c) {
  if (masks.state == MaskState::kStable ||
      (masks.state == MaskState::kSettling && masks.complete)) {
    last_equal_ = masks;
    account_.NoteMasks(masks.mask_digest, progress_.committed_count());
  }
  if (masks.state != mask_state_) {
    mask_state_ = masks.state;
    c.effects.Log(absl::StrCat("job ", id_.ToString(), ": ", masks.reason));
  }
  const std::string restless = RestlessText(c);
  if (!restless.empty() && !restless_told_) {
    c.effects.Warn(absl::StrCat("job ", id_.ToString(), ": ", restless));
  }
  restless_told_ = !restless.empty();
  if (masks.state == MaskState::kStable &&
      (masks.mask_digest != logged_mask_ ||
       masks.layout_digest != logged_layout_)) {
    logged_mask_ = masks.mask_digest;
    logged_layout_ = masks.layout_digest;
    c.effects.records.push_back(MaskSetStable{
        id_, generation_->number, masks.mask_digest, masks.layout_digest,
        masks.kept_elements, masks.elements});
  }
}

void Group::NoteNoise(const protocol::StepReport& report,
                      const std::string& agent) {
  for (const protocol::StepReport::Noise& sample : report.noise) {
    noise_.Add(agent, sample);
  }
  const Decision& now = decisions_.in_force();
  const auto measured = noise_.Newest(now.version);
  const double expected = ExpectedNoise(now.codec);
  if (measured && expected > 0 && measured->encoded > 0) {
    noise_factor_ = measured->error / (expected * measured->encoded);
  }
}

void Group::WatchNorms(const protocol::StepReport& report,
                       const protocol::Member& member, Context& c) {
  for (const protocol::StepReport::Noise& sample : report.noise) {
    const auto alarm = norms_.Add(member, sample, c.options.norm_alarm, c.now);
    if (!alarm) continue;
    ++norm_alarms_;
    if (alarm->told) continue;
    c.effects.Warn(absl::StrCat("job ", id_.ToString(),
                                ": gradient alarm: ", alarm->text));
    c.effects.alarms.push_back({id_, member.agent, alarm->text});
  }
}

Telemetry Group::MakeTelemetry() const {
  Telemetry telemetry;
  telemetry.sites = static_cast<int>(generation_->sites.size());
  telemetry.exchange_share = progress_.exchange_share();
  telemetry.measured_steps = noise_.steps();
  telemetry.noise = noise_.Newest();
  telemetry.current = noise_.Newest(decisions_.aim().version);
  telemetry.noise_factor = noise_factor_;
  telemetry.in_force = decisions_.in_force();
  return telemetry;
}

void Group::SetPin(const std::optional<Pin>& pin, Context& c) {
  if (pin == pin_) return;
  pin_ = pin;
  refused_.reset();
  c.effects.records.push_back(PinSet{id_, pin});
  c.effects.Log(
      absl::StrCat("job ", id_.ToString(), ": ",
                   pin ? absl::StrCat("an operator pinned ", pin->ToString())
                       : "an operator left the decision to the policy"));
  Decide(c);
}

std::optional<Decision> Group::Wanted(const Context& c) const {
  return Choose(c.options, decisions_.aim(), votes_,
                progress_.committed_count(), MakeTelemetry(),
                PinsOf(generation_->onset));
}

Pins Group::PinsOf(const protocol::Onset& onset) const {
  Pins pins{.by_operator = pin_, .script_from = onset.pin_from};
  if (onset.pin_from == 0) return pins;
  pins.by_script = {onset.pin_mode, onset.pin_codec};
  // The step after those that were committed does not hear of the vote any
  // more.
  const uint64_t next = votes_.AfterSteps() + 2;
  const uint64_t every = std::max<uint64_t>(1, onset.activate_every);
  pins.script_with_masks = (next + every - 1) / every * every >= onset.pin_from;
  return pins;
}

Decision Group::FirstDecision(const protocol::Generation& generation,
                              Context& c) const {
  const Decision full = FullDecision(
      c.options, absl::StrCat("generation ", generation.number,
                              " starts FULL: all elements are sent until "
                              "a mask set is agreed"));
  Telemetry telemetry;
  telemetry.sites = static_cast<int>(generation.sites.size());
  return Choose(c.options, full, votes_, /*step=*/0, telemetry,
                PinsOf(generation.onset))
      .value_or(full);
}

void Group::Decide(Context& c) {
  if (!running() || c.read_only || in_force_unknown_) return;
  const uint64_t step = progress_.committed_count();
  NoteMasks(votes_.Evaluate(step), c);
  std::optional<Decision> wanted = Wanted(c);
  if (!decisions_.Knows(progress_.version_in_force())) {
    if (decisions_.prepared()) return;
    return Prepare(FullDecision(c.options,
                                "a backup was restored that does not hold the "
                                "decision in force"),
                   c);
  }
  if (!wanted) return;
  if (refused_ && SameContent(*wanted, refused_->decision) &&
      step < refused_->step + c.options.epoch_steps) {
    // Not again so soon; but what is in force must not make every step dense.
    const Decision& now = decisions_.in_force();
    if (now.mode == protocol::Mode::kFull ||
        !votes_.OutsideOf(now.mask_digest, now.layout_digest)) {
      return;
    }
    wanted = FullDecision(c.options,
                          "the new mask set was refused and is not inside "
                          "the agreed one");
  }
  if (SameContent(*wanted, decisions_.aim())) return;
  if (decisions_.prepared() && SameContent(*wanted, decisions_.in_force())) {
    Revoke(wanted->reason, c);
  } else {
    Prepare(std::move(*wanted), c);
  }
}

void Group::Prepare(Decision wanted, Context& c) {
  const Decision& decision = decisions_.Prepare(std::move(wanted));
  if (!PT_WEAKENED(DecisionNotJournaled)) {
    c.effects.records.push_back(
        DecisionMade{id_, generation_->number, decision});
  }
  SendToMembers(protocol::Prepare{id_, generation_->number, decision}, c);
  c.effects.Log(absl::StrCat(
      "job ", id_.ToString(), ": prepares decision ", decision.version, " (",
      protocol::ModeName(decision.mode), " ",
      protocol::CodecName(decision.codec), "): ", decision.reason));
}

void Group::Revoke(const std::string& reason, Context& c) {
  const uint64_t version = decisions_.prepared()->version;
  decisions_.Revoke();
  c.effects.records.push_back(
      DecisionRevoked{id_, generation_->number, version, reason});
  SendToMembers(protocol::Revoke{id_, generation_->number, version}, c);
  c.effects.Log(absl::StrCat("job ", id_.ToString(), ": revokes decision ",
                             version, ": ", reason));
}

// Why what travels now does, in figures of now: a decision keeps the reason for
// which it was made.
std::string Group::DecisionReason(const Context& c) const {
  const std::string votes = votes_.Evaluate(progress_.committed_count()).reason;
  if (in_force_unknown_) return votes;
  const Decision& now = decisions_.in_force();
  const std::optional<Decision> wanted = Wanted(c);
  if (!wanted) {
    if (!pin_ || pin_->IsMetBy(now)) return votes;
    return absl::StrCat(votes, "; pinned to ", pin_->ToString(),
                        ", not in force before the mask votes are settled");
  }
  if (SameContent(*wanted, now)) return wanted->reason;
  const bool refused = refused_ && SameContent(*wanted, refused_->decision);
  return absl::StrCat(wanted->reason, "; not in force yet: ",
                      refused ? refused_->reason : "all agents must switch");
}

std::string Group::RestlessText(const Context& c) const {
  const uint64_t steps =
      votes_.Evaluate(progress_.committed_count()).unsettled_steps;
  if (steps <= 2 * uint64_t{c.options.epoch_steps}) return "";
  const std::string who = votes_.UnsettledText();
  return absl::StrCat("masks have not settled for ", steps,
                      " steps, more than two epochs of ", c.options.epoch_steps,
                      who.empty() ? "" : ": ", who);
}

std::string Group::RunningReason(const Context& c) const {
  std::string text = DecisionReason(c);
  const std::string restless = RestlessText(c);
  if (!restless.empty()) absl::StrAppend(&text, "; ", restless);
  if (const std::vector<std::string> lost = LostAgents(c); !lost.empty()) {
    absl::StrAppend(&text, "; no stream from ",
                    base::Counted(lost.size(), "agent"), " ('",
                    absl::StrJoin(lost, "', '"), "'), the generation goes on");
  }
  if (!progress_.waits_for().empty()) {
    absl::StrAppend(&text, "; the open step waits: ", progress_.waits_for());
  }
  if (end_due_) absl::StrAppend(&text, "; to be ended: ", *end_due_);
  if (!membership_.empty()) {
    absl::StrAppend(&text, "; a launch waits: ", WaitingReason(c));
  }
  return text;
}

std::vector<std::string> Group::LostAgents(const Context& c) const {
  std::vector<std::string> lost;
  if (!generation_ || (ended_ && EndedInOrder())) return lost;
  for (size_t m = 0; m < generation_->members.size(); ++m) {
    const std::string& name = generation_->members[m].agent;
    const Agent* agent = c.agents.Find(name);
    if (agent != nullptr && agent->connected()) continue;
    if (running() || seats_.IsDeserted(m)) lost.push_back(name);
  }
  return lost;
}

void Group::NoteMode(const Context& c) {
  if (!running() || in_force_unknown_) {
    account_.Enter(std::nullopt, std::nullopt, c.now);
    return;
  }
  const Pins pins = PinsOf(generation_->onset);
  account_.Enter(decisions_.in_force(),
                 pins.by_operator ? pins.by_operator : pins.by_script, c.now);
}

GroupSnapshot Group::Snapshot(const Context& c) const {
  GroupSnapshot s;
  s.group = id_;
  s.generation = generation_;
  if (running()) {
    s.phase = GroupPhase::kRunning;
    s.reason = RunningReason(c);
    if (!in_force_unknown_) s.in_force = decisions_.in_force();
    s.prepared = decisions_.prepared();
    s.exchange_share = progress_.exchange_share();
    s.waits_for = progress_.waits_for();
    if (const auto noise = noise_.Newest(decisions_.in_force().version)) {
      s.risk = noise->risk();
      s.risk_clip = noise->risk_clip();
    }
  } else if (generation_ && membership_.empty()) {
    s.phase = EndedInOrder() ? GroupPhase::kEnded : GroupPhase::kFailed;
    s.reason = end_reason_;
  } else {
    s.phase = GroupPhase::kWaiting;
    s.reason = WaitingReason(c);
  }
  s.lost_agents = LostAgents(c);
  if (ended_) s.ended_seconds = absl::ToDoubleSeconds(c.now - ended_at_);
  s.history = decisions_.history();
  s.committed_step = progress_.committed_step();
  s.committed_count = progress_.committed_count();
  s.failed_attempts = progress_.failed_attempts();
  if (!in_force_unknown_) {
    s.committed_total = committed_before_ + s.committed_count;
    s.failed_attempts_total = failed_before_ + s.failed_attempts;
    s.failed_by_cause_total = FailedByCause(s.failed_attempts_total);
  }
  s.norm_alarms_total = norm_alarms_;
  s.step_seconds = progress_.step_seconds();
  s.kept_elements = last_equal_.kept_elements;
  s.elements = last_equal_.elements;
  s.masks = votes_.Progress();
  s.first_compacted_step = progress_.first_compacted_step();
  s.links = progress_.Links();
  s.paces = progress_.Paces();
  s.node_paths = progress_.Paths();
  s.pin = pin_;
  s.account = account_.At(c.now, progress_.committed_count());
  s.counted_since = c.epoch + since_;
  s.votes = votes_.Count();
  if (keep_ && keep_->mask_digest == last_equal_.mask_digest) {
    s.keep_by_parameter = keep_;
  }
  return s;
}

protocol::AttemptsByCause Group::FailedByCause(uint64_t total) const {
  protocol::AttemptsByCause by_cause = {};
  uint64_t told = 0;
  for (size_t cause = 1; cause < protocol::kCauses; ++cause) {
    by_cause[cause] =
        failed_by_cause_before_[cause] + progress_.failed_by_cause()[cause];
    told += by_cause[cause];
  }
  by_cause[0] = total - std::min(told, total);
  return by_cause;
}

}  // namespace pactrain::coordinator
