#include "tests/sim/sim_trainer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace pactrain::sim {
namespace {

using trainer::Event;

}  // namespace

SimTrainer::SimTrainer(World* world, const Workload* workload, Oracle* oracle,
                       const Options& options,
                       std::function<void(ToAgent)> send,
                       std::function<void(End)> ended)
    : world_(world),
      workload_(workload),
      oracle_(oracle),
      options_(options),
      send_(std::move(send)),
      ended_(std::move(ended)),
      rank_(options.rank) {
  own_.mask_epoch = options.mask_epoch;
  MakeState({}, options.resume_step);
}

void SimTrainer::MakeState(const wire::Digest128& lineage, uint64_t resume_step,
                           const wire::Digest128& last_attach_id) {
  ++connection_;
  const bool has_state = lineage.hi != 0 || lineage.lo != 0;
  claimed_generation_ = has_state_ ? generation_ : 0;
  trainer::TrainerOptions o;
  o.agent = "simulated";
  o.job = "job";
  o.launch = options_.launch;
  o.rank = options_.rank;
  o.world_size = options_.world_size;
  attach_id_ = {Hash({77, options_.process}),
                static_cast<uint64_t>(connection_)};
  o.attach_id = attach_id_;
  o.last_attach_id = last_attach_id;
  o.model_digest = {1, 1};
  o.model_summary = "simulated";
  o.elements = workload_->elements();
  o.resume_step = resume_step;
  o.replace = options_.replace;
  o.lineage = lineage;
  o.committed = has_state ? own_.applied : 0;
  o.on_shrink = static_cast<uint8_t>(options_.on_shrink);
  o.gse = options_.gse;
  o.activate_every = workload_->activate_every();
  if (!has_state && workload_->declares()) {
    o.mask_digest = workload_->MaskDigest(own_.mask_epoch);
    o.layout_digest = workload_->LayoutDigest(0);
    o.kept_elements = workload_->KeptElements(own_.mask_epoch);
    o.declared_elements = workload_->elements();
  }
  constexpr int kAttachSeconds = 70;  // Longer than any cut.
  o.attach_timeout = std::chrono::seconds(kAttachSeconds);
  state_ = std::make_unique<trainer::TrainerState>(o, Now());
  Later(absl::Seconds(kAttachSeconds + 1), &SimTrainer::GiveUpAttaching);
}

void SimTrainer::GiveUpAttaching() {
  if (!attached() && !state_->over()) Handle(state_->OnTick(Now()));
}

trainer::Time SimTrainer::Now() const {
  return std::chrono::nanoseconds(absl::ToInt64Nanoseconds(world_->now()));
}

void SimTrainer::Later(absl::Duration delay, void (SimTrainer::*run)()) {
  world_->After(delay, [this, run, connection = connection_] {
    if (!alive_ || connection != connection_) return;
    if (stopped()) return WhenOn([this, run] { (this->*run)(); });
    (this->*run)();
  });
}

void SimTrainer::Stop(absl::Duration time) {
  if (stopped()) return;
  world_->any_stopped = true;
  stopped_until_ = world_->now() + time;
}

void SimTrainer::WhenOn(std::function<void()> what) {
  world_->At(stopped_until_,
             [this, what = std::move(what), connection = connection_] {
               if (alive_ && connection == connection_) what();
             });
}

std::string SimTrainer::Name() const {
  return absl::StrFormat(
      "process %d (launch %s, asked for rank %d, has rank %d of generation %d, "
      "%d steps applied of lineage %d)",
      options_.process, options_.launch, options_.rank, rank_, generation_,
      own_.applied, own_.lineage);
}

std::string SimTrainer::Progress() const {
  return absl::StrFormat(
      "rank %d: %s, generation %d, %d of %d applied, step %d %s", rank_,
      alive_ ? "alive" : "gone", generation_, own_.applied, options_.steps,
      state_->next_step(), open_ ? "open" : "not open");
}

void SimTrainer::OnMessage(const FromAgent& message) {
  if (!alive_ || HearsLater([this, message] { OnMessage(message); })) return;
  const Event event = std::visit(
      [&](const auto& m) { return state_->OnMessage(Now(), &m, sizeof(m)); },
      message);
  if (const auto* written = std::get_if<wire::Written>(&message)) {
    const auto& results = state_->results();
    // Of a bucket that is being filled nothing is taken yet.
    const bool there = written->bucket < state_->placements().size();
    if (event != Event::kWritten || results.attempt != written->attempt ||
        results.buckets != written->bucket ||
        results.elements != (there ? written->elements : 0)) {
      world_->Fail(absl::StrFormat(
          "rank %d takes other results of step %d than it is told of", rank_,
          written->step));
    }
  }
  Handle(event);
}

bool SimTrainer::HearsLater(std::function<void()> hear) {
  const absl::Duration until = std::max(deaf_until_, stopped_until_);
  if (world_->now() >= until) return false;
  world_->At(until, [this, hear = std::move(hear), connection = connection_] {
    if (connection == connection_) hear();
  });
  return true;
}

void SimTrainer::OnClosed() {
  if (!alive_ || HearsLater([this] { OnClosed(); })) return;
  if (alive_) Handle(state_->OnClosed(Now()));
}

void SimTrainer::Handle(Event event) {
  switch (event) {
    case Event::kNone:
    case Event::kWaiting:
      break;
    case Event::kWritten:
      OnWritten();
      break;
    case Event::kAttached:
      OnAttached();
      break;
    case Event::kResubmit:
      for (const trainer::Placement& p : state_->TakeResubmits()) Write(p);
      break;
    case Event::kStepDone:
      FinishStep();
      break;
    case Event::kOver:
      FinishStep();
      break;
  }
}

void SimTrainer::OnAttached() {
  const wire::Attached& attached = *state_->attached();
  generation_ = attached.generation;
  rank_ = attached.rank;
  lineage_ = attached.lineage;
  seat_id_ = attach_id_;
  reached_ = attached.base_step;
  hands_state_ = attached.donor != wire::kNoRank;
  if (!hands_state_) {
    own_ = {Hash({99, generation_}), 0, own_.mask_epoch, generation_};
    has_state_ = true;
  } else if (attached.needs_state != 0) {
    has_state_ = false;
  } else {
    if (held_lineage_.hi != lineage_.hi || held_lineage_.lo != lineage_.lo) {
      world_->Fail("a rank without the state is taken for one that has it");
    }
    has_state_ = true;
  }
  oracle_->Attached(rank_, generation_, state_->next_step(),
                    attached.world_size);
  if (!state_->SetMasks(workload_->MakeMaskSet(own_.mask_epoch)).ok()) {
    world_->Fail("SetMasks after attach failed");
  }
  if (has_state_) Vote(true);
  Later(world_->random.Between(absl::Milliseconds(1), absl::Milliseconds(40)),
        &SimTrainer::OpenStep);
}

// It lives, and what ended was the generation or the agent.
void SimTrainer::Rejoin() {
  // Not next_step(): that is past a step which failed with the session, too.
  if (has_state_) {
    held_lineage_ = lineage_;
    held_step_ = reached_;
  }
  MakeState(held_lineage_, held_step_, seat_id_);
  open_ = false;
  ended_(End::kRejoin);
}

void SimTrainer::TakeState(const RankState& donors) {
  hands_state_ = false;
  if (has_state_) {
    if (donors.chain != own_.chain) {
      world_->Fail(absl::StrFormat(
          "rank %d is taken for current and has another state", rank_));
    }
    return;
  }
  // One who was in the generation just before may not have come farther.
  if (claimed_generation_ + 1 == generation_ && own_.applied > donors.applied) {
    world_->Fail(
        absl::StrFormat("rank %d had come farther than the donor", rank_));
  }
  if (own_.lineage == donors.lineage && own_.applied > donors.applied) {
    world_->Fail(absl::StrFormat(
        "the state goes back: %s takes one with %d steps applied", Name(),
        donors.applied));
  }
  has_state_ = true;
  if (options_.mutant == Mutant::kKeepOwnState) return Vote(true);
  const int masks = std::exchange(own_, donors).mask_epoch;
  if (masks == own_.mask_epoch) {
    Vote(true);
  } else {
    next_mask_epoch_ = own_.mask_epoch;
  }
}

void SimTrainer::Vote(bool inside) {
  trainer::TrainerState::VoteOptions vote;
  vote.layout_digest = workload_->LayoutDigest(0);
  vote.mask_digest = workload_->MaskDigest(own_.mask_epoch);
  vote.steps_unchanged = 1;
  vote.settle_steps = 1;
  vote.inside_decision = inside;
  vote.kept_elements = workload_->KeptElements(own_.mask_epoch);
  vote.elements = workload_->elements();
  wire::Vote message;
  if (state_->Vote(vote, &message).ok()) send_(message);
}

void SimTrainer::FinishStep() {
  if (state_->step_done()) {
    trainer::StepReport report;
    const trainer::Error error = state_->TakeStep(&report);
    open_ = false;
    if (error.ok()) {
      ReportCommit(report);
    } else {
      world_->Note(3, rank_, static_cast<uint64_t>(error.code));
      world_->Say([&] {
        return absl::StrFormat("rank %d step %d: %s", rank_, step_, error.text);
      });
      if (error.code == wire::Code::kStepNotApplied) {
        oracle_->NotApplied(rank_, generation_, step_);
      } else if (error.code == wire::Code::kInternal ||
                 error.code == wire::Code::kInvalidArgument) {
        world_->Fail(absl::StrFormat("rank %d got an error of the protocol: %s",
                                     rank_, error.text));
      }
    }
  }
  if (state_->over()) {
    const trainer::Error& error = state_->error();
    world_->Say([&] {
      return absl::StrFormat("rank %d is over: %s", rank_, error.text);
    });
    if (error.code == wire::Code::kInternal ||
        error.code == wire::Code::kInvalidArgument) {
      world_->Fail(absl::StrFormat("rank %d got an error of the protocol: %s",
                                   rank_, error.text));
    }
    if (error.may_rejoin && !IsDone()) return Rejoin();
    if (error.may_rejoin) send_(state_->MakeDetach());
    Finish(error.may_rejoin ? End::kDone : End::kFailed);
    return;
  }
  if (IsDone()) {
    send_(state_->MakeDetach());
    Finish(End::kDone);
    return;
  }
  const absl::Duration rest = std::exchange(rest_, absl::ZeroDuration());
  deaf_until_ = rest == absl::ZeroDuration() ? rest : world_->now() + rest;
  Later(rest + world_->random.Between(absl::Milliseconds(1), options_.pace),
        &SimTrainer::OpenStep);
}

bool SimTrainer::IsDone() const {
  return own_.applied >= options_.steps ||
         (options_.leaves > 0 && commits_ >= options_.leaves);
}

void SimTrainer::Finish(End end) {
  alive_ = false;
  ended_(end);
}

}  // namespace pactrain::sim
