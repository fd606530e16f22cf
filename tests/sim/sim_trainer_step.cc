// Of a SimTrainer: one step, from its gradients to its results.
#include <utility>

#include "absl/strings/str_format.h"
#include "tests/sim/sim_trainer.h"

namespace pactrain::sim {

void SimTrainer::OpenStep() {
  if (next_mask_epoch_ && !todo_) {
    own_.mask_epoch = *std::exchange(next_mask_epoch_, std::nullopt);
    if (!state_->SetMasks(workload_->MakeMaskSet(own_.mask_epoch)).ok()) {
      world_->Fail("SetMasks between steps failed");
    }
    Vote(own_.mask_epoch % 2 == 0);  // Odd ones claim to lie outside.
  }
  step_ = state_->next_step();
  codec_ = static_cast<trainer::Codec>(state_->decision().codec);
  contribution_ = {};
  if (todo_) {
    const auto* words = static_cast<const float*>(todo_->in);
    contribution_.message =
        std::make_shared<std::vector<float>>(words, words + todo_->words);
  } else {
    contribution_.layout = workload_->LayoutOf(step_);
  }
  if (std::exchange(wrong_layout_, false)) {
    contribution_.layout = 1 - contribution_.layout;
  }
  contribution_.mask_epoch = own_.mask_epoch;
  contribution_.noise = std::exchange(noise_, false);
  contribution_.gse = options_.gse;
  if (!todo_ && workload_->HasParameters(step_)) {
    contribution_.parameters = Hash({step_, generation_}) | 1;
    if (std::exchange(wrong_parameters_, false)) ++contribution_.parameters;
  }
  next_bucket_ = 0;
  told_ = {};
  read_.clear();
  open_ = true;
  oracle_->Opened(rank_, instance_, step_, state_->decision().version,
                  contribution_);
  world_->Note(1, rank_, step_);
  SubmitNext();
}

size_t SimTrainer::Buckets() const {
  return contribution_.message != nullptr
             ? 1
             : workload_->buckets(contribution_.layout);
}

uint64_t SimTrainer::BucketElements(size_t bucket) const {
  return contribution_.message != nullptr
             ? contribution_.message->size()
             : workload_->bucket_elements(contribution_.layout, bucket);
}

void SimTrainer::SubmitNext() {
  const absl::Duration pause = std::exchange(pause_, absl::ZeroDuration());
  if (pause > absl::ZeroDuration()) {
    SubmitLater(pause);
    return;
  }
  const size_t count = Buckets();
  trainer::Bucket bucket;
  bucket.index = static_cast<uint32_t>(next_bucket_);
  bucket.elements = BucketElements(next_bucket_);
  bucket.op = workload_->IsXor(step_, contribution_) ? trainer::Op::kXor
                                                     : trainer::Op::kSum;
  bucket.layout = workload_->BucketLayout(contribution_.layout, next_bucket_);
  if (contribution_.message != nullptr && contribution_.layout == 0) {
    bucket.layout = {todo_->layout.hi, todo_->layout.lo};
  }
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
    const auto submit = [this, step] {
      if (open_ && step == step_) SubmitNext();
    };
    if (!alive_ || connection != connection_) return;
    if (stopped()) return WhenOn(submit);
    submit();
  });
}

void SimTrainer::Write(const trainer::Placement& placement) {
  const std::vector<float> data = workload_->BucketData(
      rank_, instance_, step_, contribution_, placement.bucket.index);
  const uint64_t outside = trainer::WriteTiles(
      placement, {0, placement.tiles()},
      trainer::Parts({{data.data(), data.size()}}), slot_->data());
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
  // After a stop what the agent said may still be to be heard.
  if (Now() >= *deadline && world_->any_stopped) {
    return Handle(state_->OnTick(Now()));
  }
  if (Now() >= *deadline) {
    world_->Fail(absl::StrFormat(
        "rank %d waited for step %d longer than its agent may take", rank_,
        step_));
    return;
  }
  Later(absl::Nanoseconds((*deadline - Now()).count()) + absl::Milliseconds(1),
        &SimTrainer::Watch);
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

void SimTrainer::ReportCommit(const pt_step& report) {
  std::vector<Oracle::Bucket> buckets;
  for (size_t b = 0; b < Buckets(); ++b) {
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
        report.attempts, contribution_.message != nullptr ? "state, " : "",
        report.dense
            ? "DENSE"
            : protocol::ModeName(static_cast<protocol::Mode>(report.mode)));
  });
  const bool is_message = contribution_.message != nullptr;
  oracle_->Committed(rank_, instance_, step_, report.next.version,
                     is_message ? 0 : own_.chain, buckets);
  reached_ = step_ + 1;
  if (is_message) {
    std::memcpy(todo_->out, buckets[0].data, 4 * todo_->words);
    return;
  }
  own_.chain = Hash({own_.chain, step_});
  ++own_.applied;
  ++commits_;
}

}  // namespace pactrain::sim
