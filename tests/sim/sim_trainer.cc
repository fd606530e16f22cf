#include "tests/sim/sim_trainer.h"

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
      mask_epoch_(options.mask_epoch) {
  trainer::TrainerOptions o;
  o.agent = "simulated";
  o.job = "job";
  o.launch = absl::StrFormat("launch-%d", options.launch);
  o.rank = options.rank;
  o.world_size = workload->world_size();
  o.attach_id = {Hash({77, options.launch, options.rank}), 1};
  o.model_digest = {1, 1};
  o.model_summary = "simulated";
  o.elements = workload->elements();
  o.resume_step = options.resume_step;
  o.gse = options.gse;
  o.attach_timeout = std::chrono::hours(10);
  state_ = std::make_unique<trainer::TrainerState>(o, Now());
}

trainer::Time SimTrainer::Now() const {
  return std::chrono::nanoseconds(absl::ToInt64Nanoseconds(world_->now()));
}

void SimTrainer::Later(absl::Duration delay, void (SimTrainer::*run)()) {
  world_->After(delay, [this, run] {
    if (alive_) (this->*run)();
  });
}

std::string SimTrainer::Progress() const {
  return absl::StrFormat("rank %d: %s, generation %d, %d commits, step %d %s",
                         options_.rank, alive_ ? "alive" : "gone", generation_,
                         commits_, state_->next_step(),
                         open_ ? "open" : "not open");
}

void SimTrainer::OnMessage(const FromAgent& message) {
  if (!alive_) return;
  Handle(std::visit(
      [&](const auto& m) { return state_->OnMessage(Now(), &m, sizeof(m)); },
      message));
}

void SimTrainer::OnClosed() {
  if (alive_) Handle(state_->OnClosed(Now()));
}

void SimTrainer::Handle(Event event) {
  switch (event) {
    case Event::kNone:
    case Event::kWaiting:
      break;
    case Event::kAttached:
      generation_ = state_->attached()->generation;
      oracle_->Attached(options_.rank, generation_, state_->next_step());
      if (!state_->SetMasks(workload_->MakeMaskSet(mask_epoch_)).ok()) {
        world_->Fail("SetMasks after attach failed");
      }
      Vote(true);
      Later(
          world_->random.Between(absl::Milliseconds(1), absl::Milliseconds(40)),
          &SimTrainer::OpenStep);
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

void SimTrainer::Vote(bool inside) {
  trainer::TrainerState::VoteOptions vote;
  vote.layout_digest = workload_->LayoutDigest(0);
  vote.mask_digest = workload_->MaskDigest(mask_epoch_);
  vote.steps_unchanged = 1;
  vote.settle_steps = 1;
  vote.inside_decision = inside;
  vote.kept_elements = workload_->KeptElements(mask_epoch_);
  vote.elements = workload_->elements();
  wire::Vote message;
  if (state_->Vote(vote, &message).ok()) send_(message);
}

void SimTrainer::OpenStep() {
  if (next_mask_epoch_) {
    mask_epoch_ = *std::exchange(next_mask_epoch_, std::nullopt);
    if (!state_->SetMasks(workload_->MakeMaskSet(mask_epoch_)).ok()) {
      world_->Fail("SetMasks between steps failed");
    }
    Vote(mask_epoch_ % 2 == 0);  // Odd ones claim to lie outside.
  }
  step_ = state_->next_step();
  codec_ = static_cast<trainer::Codec>(state_->decision().codec);
  contribution_ = {};
  contribution_.layout = workload_->LayoutOf(step_);
  if (std::exchange(wrong_layout_, false)) {
    contribution_.layout = 1 - contribution_.layout;
  }
  contribution_.mask_epoch = mask_epoch_;
  contribution_.noise = std::exchange(noise_, false);
  if (workload_->HasParameters(step_)) {
    contribution_.parameters = Hash({step_, generation_}) | 1;
    if (std::exchange(wrong_parameters_, false)) ++contribution_.parameters;
  }
  next_bucket_ = 0;
  open_ = true;
  oracle_->Opened(options_.rank, generation_, step_, state_->decision().version,
                  contribution_);
  world_->Note(1, options_.rank, step_);
  SubmitNext();
}

void SimTrainer::SubmitNext() {
  const absl::Duration pause = std::exchange(pause_, absl::ZeroDuration());
  if (pause > absl::ZeroDuration()) {
    SubmitLater(pause);
    return;
  }
  const size_t count = workload_->buckets(contribution_.layout);
  trainer::Bucket bucket;
  bucket.index = static_cast<uint32_t>(next_bucket_);
  bucket.elements =
      workload_->bucket_elements(contribution_.layout, next_bucket_);
  bucket.op = workload_->IsXor(step_) ? trainer::Op::kXor : trainer::Op::kSum;
  bucket.layout = workload_->BucketLayout(contribution_.layout, next_bucket_);
  bucket.last = next_bucket_ + 1 == count;
  if (bucket.last && contribution_.parameters != 0) {
    bucket.parameters = {contribution_.parameters, 1};
  }
  trainer::Placement placement;
  const trainer::Error error = state_->Place(Now(), bucket, &placement);
  if (!error.ok()) {
    if (error.code == wire::Code::kInvalidArgument) {
      world_->Fail("Place refused a good bucket: " + error.text);
    }
    FinishStep();
    return;
  }
  ++next_bucket_;
  Write(placement);
  if (!bucket.last) {
    SubmitLater(
        world_->random.Between(absl::ZeroDuration(), absl::Milliseconds(5)));
  } else {
    Watch();
  }
}

// Unless the step has failed by then.
void SimTrainer::SubmitLater(absl::Duration delay) {
  world_->After(delay, [this, step = step_] {
    if (alive_ && open_ && step == step_) SubmitNext();
  });
}

void SimTrainer::Write(const trainer::Placement& placement) {
  const std::vector<float> data = workload_->BucketData(
      options_.rank, generation_, step_, contribution_, placement.bucket.index);
  const uint64_t outside =
      trainer::WriteBucket(placement, data.data(), slot_->data());
  send_(state_->Submit(Now(), placement, outside));
}

// The trainer's own watchdog: a living agent must always be faster.
void SimTrainer::Watch() {
  const auto deadline = state_->deadline();
  if (!alive_ || !open_ || !deadline) return;
  if (Now() >= *deadline) {
    world_->Fail(absl::StrFormat(
        "rank %d waited for step %d longer than its agent may take",
        options_.rank, step_));
    return;
  }
  Later(absl::Nanoseconds((*deadline - Now()).count()) + absl::Milliseconds(1),
        &SimTrainer::Watch);
}

void SimTrainer::FinishStep() {
  if (state_->step_done()) {
    trainer::StepReport report;
    const trainer::Error error = state_->TakeStep(&report);
    open_ = false;
    if (error.ok()) {
      ReportCommit(report);
    } else {
      world_->Note(3, options_.rank, static_cast<uint64_t>(error.code));
      world_->Say([&] {
        return absl::StrFormat("rank %d step %d: %s", options_.rank, step_,
                               error.text);
      });
      if (error.code == wire::Code::kStepNotApplied) {
        oracle_->NotApplied(options_.rank, generation_, step_);
      } else if (error.code == wire::Code::kInternal ||
                 error.code == wire::Code::kInvalidArgument) {
        world_->Fail(absl::StrFormat("rank %d got an error of the protocol: %s",
                                     options_.rank, error.text));
      }
    }
  }
  if (state_->over()) {
    const trainer::Error& error = state_->error();
    world_->Say([&] {
      return absl::StrFormat("rank %d is over: %s", options_.rank, error.text);
    });
    if (error.code == wire::Code::kInternal ||
        error.code == wire::Code::kInvalidArgument) {
      world_->Fail(absl::StrFormat("rank %d got an error of the protocol: %s",
                                   options_.rank, error.text));
    }
    Finish(End::kFailed);
    return;
  }
  if (commits_ >= options_.steps) {
    send_(state_->MakeDetach());
    Finish(End::kDone);
    return;
  }
  Later(world_->random.Between(absl::Milliseconds(1), absl::Milliseconds(120)),
        &SimTrainer::OpenStep);
}

int SimTrainer::LevelsOf(trainer::Codec codec) {
  switch (codec) {
    case trainer::Codec::kLevels3:
      return 3;
    case trainer::Codec::kLevels5:
      return 5;
    case trainer::Codec::kLevels7:
      return 7;
    case trainer::Codec::kLevels15:
      return 15;
    case trainer::Codec::kLevels31:
      return 31;
    case trainer::Codec::kFp32:
    case trainer::Codec::kBf16:
      break;
  }
  return 0;
}

void SimTrainer::ReportCommit(const trainer::StepReport& report) {
  ++commits_;
  std::vector<Oracle::Bucket> buckets;
  for (size_t b = 0; b < workload_->buckets(contribution_.layout); ++b) {
    const trainer::Placement* place = state_->Find(static_cast<uint32_t>(b));
    if (place == nullptr) {
      world_->Fail("a committed bucket is not to be found");
      return;
    }
    Oracle::Bucket bucket;
    bucket.data =
        reinterpret_cast<const float*>(result_->data() + place->offset);
    if (place->mode == trainer::Mode::kTernary && !report.dense) {
      bucket.levels = LevelsOf(codec_);
    }
    const uint64_t start = workload_->BucketStart(contribution_.layout, b);
    for (uint64_t i = 0; i < place->bucket.elements; ++i) {
      const bool kept = place->mask == nullptr ||
                        ((place->mask->words()[i / 64] >> (i % 64)) & 1) != 0;
      if (kept) bucket.elements.push_back(start + i);
    }
    buckets.push_back(std::move(bucket));
  }
  world_->Note(2, options_.rank, step_);
  world_->Say([&] {
    return absl::StrFormat(
        "rank %d committed step %d (attempt %d, %s)", options_.rank, step_,
        report.attempts,
        report.dense
            ? "DENSE"
            : protocol::ModeName(static_cast<protocol::Mode>(report.mode)));
  });
  oracle_->Committed(options_.rank, generation_, step_, report.next.version,
                     buckets);
}

void SimTrainer::Finish(End end) {
  alive_ = false;
  ended_(end);
}

}  // namespace pactrain::sim
