#include "tests/sim/sim_trainer.h"

#include <bit>
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
  MakeState(0, options.resume_step);
}

void SimTrainer::MakeState(uint64_t last_generation, uint64_t resume_step,
                           const wire::Digest128& last_attach_id) {
  ++connection_;
  claimed_generation_ = last_generation;
  trainer::TrainerOptions o;
  o.agent = "simulated";
  o.job = "job";
  o.launch = options_.launch;
  o.rank = options_.rank;
  o.world_size = options_.world_size;
  attach_id_ = {
      Hash({77, options_.process, static_cast<uint64_t>(connection_)}), 1};
  o.attach_id = attach_id_;
  o.last_attach_id = last_attach_id;
  o.model_digest = {1, 1};
  o.model_summary = "simulated";
  o.elements = workload_->elements();
  o.resume_step = resume_step;
  o.last_generation = last_generation;
  o.on_shrink = static_cast<uint8_t>(options_.on_shrink);
  o.gse = options_.gse;
  constexpr int kAttachSeconds = 25;
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
    if (alive_ && connection == connection_) (this->*run)();
  });
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

void SimTrainer::OnWritten() {
  const trainer::TrainerState::Results& results = state_->results();
  const size_t before = results.attempt == told_.attempt ? read_.size() : 0;
  told_ = results;
  read_ = Read(results);
  if (read_.size() < before) {
    world_->Fail(absl::StrFormat("rank %d is told of less", rank_));
  }
}

std::vector<uint8_t> SimTrainer::Read(
    const trainer::TrainerState::Results& results) const {
  std::vector<uint8_t> all;
  for (uint32_t b = 0; b <= results.buckets; ++b) {
    const bool whole = b < results.buckets;
    if (!whole && results.elements == 0) break;
    const trainer::Placement& place = state_->placements()[b];
    const uint64_t elements = whole ? place.elements : results.elements;
    const uint8_t* first = result_->data() + place.offset;
    all.insert(all.end(), first, first + 4 * elements);
  }
  return all;
}

bool SimTrainer::HearsLater(std::function<void()> hear) {
  if (world_->now() >= deaf_until_) return false;
  world_->At(deaf_until_,
             [this, hear = std::move(hear), connection = connection_] {
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
  seat_id_ = attach_id_;
  reached_ = attached.base_step;
  hands_state_ = attached.donor != wire::kNoRank;
  if (!hands_state_) {
    own_ = {Hash({99, generation_}), 0, own_.mask_epoch};
    has_state_ = true;
  } else if (attached.needs_state != 0) {
    has_state_ = false;
  } else if (!has_state_) {
    world_->Fail("a rank without the state is taken for one that has it");
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
  MakeState(has_state_ ? generation_ : 0, has_state_ ? reached_ : 0, seat_id_);
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

void SimTrainer::OpenStep() {
  if (next_mask_epoch_ && !hands_state_) {
    own_.mask_epoch = *std::exchange(next_mask_epoch_, std::nullopt);
    if (!state_->SetMasks(workload_->MakeMaskSet(own_.mask_epoch)).ok()) {
      world_->Fail("SetMasks between steps failed");
    }
    Vote(own_.mask_epoch % 2 == 0);  // Odd ones claim to lie outside.
  }
  step_ = state_->next_step();
  codec_ = static_cast<trainer::Codec>(state_->decision().codec);
  contribution_ = {};
  contribution_.hands_state = hands_state_;
  if (hands_state_ && state_->attached()->donor == rank_) {
    oracle_->HandOver(own_);
    contribution_.word = own_.word();
  }
  if (!hands_state_) contribution_.layout = workload_->LayoutOf(step_);
  if (std::exchange(wrong_layout_, false)) {
    contribution_.layout = 1 - contribution_.layout;
  }
  contribution_.mask_epoch = own_.mask_epoch;
  contribution_.noise = std::exchange(noise_, false);
  if (!hands_state_ && workload_->HasParameters(step_)) {
    contribution_.parameters = Hash({step_, generation_}) | 1;
    if (std::exchange(wrong_parameters_, false)) ++contribution_.parameters;
  }
  next_bucket_ = 0;
  told_ = {};
  read_.clear();
  open_ = true;
  oracle_->Opened(rank_, generation_, step_, state_->decision().version,
                  contribution_);
  world_->Note(1, rank_, step_);
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
  bucket.op = workload_->IsXor(step_, contribution_) ? trainer::Op::kXor
                                                     : trainer::Op::kSum;
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
  world_->After(delay, [this, step = step_, connection = connection_] {
    if (alive_ && open_ && step == step_ && connection == connection_) {
      SubmitNext();
    }
  });
}

void SimTrainer::Write(const trainer::Placement& placement) {
  const std::vector<float> data = workload_->BucketData(
      rank_, generation_, step_, contribution_, placement.bucket.index);
  const uint64_t outside = trainer::WriteBucket(
      placement, trainer::Parts({{data.data(), data.size()}}), slot_->data());
  // In pieces, of which some bring nothing.
  uint64_t filled = 0;
  do {
    filled += world_->random.Below(placement.elements - filled + 1);
    if (world_->random.Chance(500)) filled = placement.elements;
    send_(state_->Submit(Now(), placement, filled, outside));
  } while (filled < placement.elements);
}

// The trainer's own watchdog: a living agent must always be faster.
void SimTrainer::Watch() {
  const auto deadline = state_->deadline();
  if (!alive_ || !open_ || !deadline) return;
  if (Now() >= *deadline) {
    world_->Fail(absl::StrFormat(
        "rank %d waited for step %d longer than its agent may take", rank_,
        step_));
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
  Later(rest + world_->random.Between(absl::Milliseconds(1),
                                      absl::Milliseconds(120)),
        &SimTrainer::OpenStep);
}

bool SimTrainer::IsDone() const {
  return own_.applied >= options_.steps ||
         (options_.leaves > 0 && commits_ >= options_.leaves);
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
  std::vector<Oracle::Bucket> buckets;
  for (size_t b = 0; b < workload_->buckets(contribution_.layout); ++b) {
    if (b >= state_->placements().size()) {
      world_->Fail("a committed bucket is not to be found");
      return;
    }
    const trainer::Placement& place = state_->placements()[b];
    Oracle::Bucket bucket;
    bucket.data =
        reinterpret_cast<const float*>(result_->data() + place.offset);
    if (place.mode == trainer::Mode::kTernary && !report.dense) {
      bucket.levels = LevelsOf(codec_);
    }
    const uint64_t start = workload_->BucketStart(contribution_.layout, b);
    for (uint64_t i = 0; i < place.bucket.elements; ++i) {
      const bool kept = place.mask == nullptr ||
                        ((place.mask->words()[i / 64] >> (i % 64)) & 1) != 0;
      if (kept) bucket.elements.push_back(start + i);
    }
    buckets.push_back(std::move(bucket));
  }
  if (told_.attempt == report.attempts && read_ != Read(told_)) {
    world_->Fail(absl::StrFormat(
        "rank %d was told of other results of step %d than are committed",
        rank_, step_));
  }
  world_->Note(2, rank_, step_);
  world_->Say([&] {
    return absl::StrFormat(
        "rank %d committed step %d (attempt %d, %s%s)", rank_, step_,
        report.attempts, contribution_.hands_state ? "state, " : "",
        report.dense
            ? "DENSE"
            : protocol::ModeName(static_cast<protocol::Mode>(report.mode)));
  });
  oracle_->Committed(rank_, generation_, step_, report.next.version,
                     contribution_.hands_state ? 0 : own_.chain, buckets);
  reached_ = step_ + 1;
  if (!contribution_.hands_state) {
    own_.chain = Hash({own_.chain, step_});
    ++own_.applied;
    ++commits_;
    return;
  }
  const RankState* donors =
      oracle_->TakeOver(std::bit_cast<uint32_t>(buckets[0].data[0]));
  if (donors == nullptr) {
    world_->Fail("a state was handed over that nobody has");
  } else {
    TakeState(*donors);
  }
}

void SimTrainer::Finish(End end) {
  alive_ = false;
  ended_(end);
}

}  // namespace pactrain::sim
