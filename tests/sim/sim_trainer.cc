#include "tests/sim/sim_trainer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "trainer/core/text.h"

namespace pactrain::sim {
namespace {

using trainer::Event;

// Longer than any cut.
constexpr absl::Duration kPatience = absl::Seconds(70);

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
      rank_(options.rank),
      membership_(
          {options.kind, /*agent_returns=*/1, PT_STATE_MESSAGE_BYTES,
           static_cast<uint32_t>(absl::ToInt64Milliseconds(kPatience))}) {
  own_.mask_epoch = options.mask_epoch;
  MakeState({{}, 0, options.resume_step}, kPatience);
}

void SimTrainer::MakeState(const Claim& claim, absl::Duration patience) {
  ++connection_;
  trainer::TrainerOptions o;
  o.agent = "simulated";
  wire::Hello& hello = o.hello;
  trainer::SetText(hello.job, "job");
  trainer::SetText(hello.launch, options_.launch);
  hello.rank = options_.rank;
  hello.world_size = options_.world_size;
  attach_id_ = {Hash({77, options_.process}),
                static_cast<uint64_t>(connection_)};
  hello.attach_id = attach_id_;
  hello.last_attach_id = seat_id_;
  hello.last_generation = generation_;
  std::copy(seat_.begin(), seat_.end(), hello.seat);
  hello.model_digest = {1, 1};
  trainer::SetText(hello.model_summary, "simulated");
  hello.elements = workload_->elements();
  hello.resume_step = claimed_step_ = claim.next_step;
  hello.replace = options_.replace ? 1 : 0;
  hello.lineage = {claim.lineage.hi, claim.lineage.lo};
  hello.committed = claim.committed;
  hello.parameters = {claim.parameters.hi, claim.parameters.lo};
  hello.on_shrink = static_cast<uint8_t>(options_.on_shrink);
  o.gse = options_.gse;
  hello.activate_every = workload_->activate_every();
  const bool has_state = claim.lineage.hi != 0 || claim.lineage.lo != 0;
  if (!has_state && workload_->declares()) {
    hello.mask_digest = workload_->MaskDigest(own_.mask_epoch);
    hello.layout_digest = workload_->LayoutDigest(0);
    hello.kept_elements = workload_->KeptElements(own_.mask_epoch);
    hello.declared_elements = workload_->elements();
  }
  o.attach_timeout =
      std::chrono::nanoseconds(absl::ToInt64Nanoseconds(patience));
  state_ = std::make_unique<trainer::TrainerState>(o, Now());
  Later(patience + absl::Seconds(1), &SimTrainer::GiveUpAttaching);
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
    case Event::kCollective:  // These have no GPU.
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
  seat_id_ = attach_id_;
  std::copy_n(attached.seat, wire::kSeatBytes, seat_.begin());
  reached_ = attached.base_step;
  instance_ =
      oracle_->Attached(options_.process, attach_id(), rank_, generation_,
                        state_->next_step(), attached.world_size);
  if (!state_->SetMasks(workload_->MakeMaskSet(own_.mask_epoch)).ok()) {
    world_->Fail("SetMasks after attach failed");
  }
  if (todo_) return Settle({});
  if (attached.donor != wire::kNoRank) return BeginToSettle({}, true);
  own_ = {Hash({99, instance_}), 0, own_.mask_epoch, instance_};
  newcomer_ = false;
  Vote(true);
  OpenNextStep();
}

void SimTrainer::OpenNextStep() {
  const absl::Duration rest = std::exchange(rest_, absl::ZeroDuration());
  deaf_until_ = rest == absl::ZeroDuration() ? rest : world_->now() + rest;
  Later(rest + world_->random.Between(absl::Milliseconds(1), options_.pace),
        &SimTrainer::OpenStep);
}

void SimTrainer::Vote(bool inside) {
  wire::Vote vote = {};
  vote.layout_digest = workload_->LayoutDigest(0);
  vote.mask_digest = workload_->MaskDigest(own_.mask_epoch);
  vote.steps_unchanged = 1;
  vote.settle_steps = 1;
  vote.inside_decision = inside ? 1 : 0;
  vote.kept_elements = workload_->KeptElements(own_.mask_epoch);
  vote.elements = workload_->elements();
  if (state_->Vote("", &vote).ok()) send_(vote);
}

void SimTrainer::FinishStep() {
  trainer::Error failed;
  if (state_->step_done()) {
    pt_step report;
    failed = state_->TakeStep(&report);
    open_ = false;
    if (failed.ok()) {
      ReportCommit(report);
    } else {
      NoteError(failed);
      if (failed.code == wire::Code::kStepNotApplied) {
        oracle_->NotApplied(rank_, instance_, step_);
      }
    }
  }
  if (state_->over()) {
    failed = state_->error();
    open_ = false;
    NoteError(failed);
    if (!todo_ && IsDone()) {
      if (failed.may_rejoin) send_(state_->MakeDetach());
      return Finish(failed.may_rejoin ? End::kDone : End::kFailed, failed.text);
    }
  }
  if (todo_) return Settle(failed);
  if (generation_ == 0 && failed.may_rejoin) {  // It was never in the job.
    MakeState({{}, 0, options_.resume_step}, kPatience);
    return ended_(End::kRejoin);
  }
  if (trainer::MayGoOn(failed, /*agent_returns=*/true)) {
    return BeginToSettle(failed, newcomer_);
  }
  if (state_->over()) return Finish(End::kFailed, failed.text);
  Continue();
}

void SimTrainer::NoteError(const trainer::Error& error) {
  world_->Note(3, rank_, static_cast<uint64_t>(error.code));
  world_->Say([&] {
    return absl::StrFormat("rank %d%s: %s", rank_,
                           error.final ? " is over" : "", error.text);
  });
  if (error.code == wire::Code::kInternal ||
      error.code == wire::Code::kInvalidArgument) {
    world_->Fail(absl::StrFormat("rank %d got an error of the protocol: %s",
                                 rank_, error.text));
  }
}

void SimTrainer::Continue() {
  if (!IsDone()) return OpenNextStep();
  send_(state_->MakeDetach());
  Finish(End::kDone);
}

bool SimTrainer::IsDone() const {
  return own_.applied >= options_.steps ||
         (options_.leaves > 0 && commits_ >= options_.leaves);
}

void SimTrainer::Finish(End end, const std::string& why) {
  alive_ = false;
  left_in_order_ = end == End::kDone;
  error_text_ = why;
  ended_(end);
}

}  // namespace pactrain::sim
