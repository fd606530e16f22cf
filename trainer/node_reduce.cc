#include "trainer/node_reduce.h"

#include <cstring>
#include <utility>

#include "trainer/core/text.h"

namespace pactrain::trainer {
namespace {

using Done = nccl::Communicator::Done;

// After a Close, until its thread is left behind; and until its stream must be
// free, or the GPU is lost.
constexpr NodeReduce::Time kStopPatience = std::chrono::seconds(2);
constexpr NodeReduce::Time kStreamPatience = std::chrono::seconds(4);

template <typename Message>
Message Make(wire::Kind kind) {
  Message message = {};
  message.header = {kind, sizeof(message)};
  return message;
}

double Seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void NodeReduce::On(Time now, const AgentPacket& packet) {
  if (const auto* m = std::get_if<wire::MakeId>(&packet)) On(now, *m);
  if (const auto* m = std::get_if<wire::Open>(&packet)) On(now, *m);
  if (const auto* m = std::get_if<wire::BucketWord>(&packet)) On(now, *m);
  if (const auto* m = std::get_if<wire::Close>(&packet)) On(now, *m);
}

bool NodeReduce::Begin(wire::CollectiveEpoch epoch) {
  if (!setup_.has_value()) return false;
  epoch_ = epoch;
  if (comm_ == nullptr) {
    comm_ = std::make_unique<nccl::Communicator>(*setup_, wake_);
  }
  return true;
}

void NodeReduce::On(Time, const wire::MakeId& message) {
  if (Begin(message.epoch)) comm_->MakeId();
}

void NodeReduce::On(Time, const wire::Open& message) {
  if (!Begin(message.epoch)) return;
  rank_ = message.rank;
  nccl::UniqueId id;
  static_assert(sizeof(id.internal) == sizeof(message.id));
  std::memcpy(id.internal, message.id, sizeof(id.internal));
  comm_->Open(id, static_cast<int>(message.ranks),
              static_cast<int>(message.rank));
}

wire::Staged NodeReduce::Stage(Time now, uint64_t step, uint32_t attempt,
                               uint32_t bucket, const nccl::Buffers& buffers) {
  job_ = Job{step, attempt, bucket, buffers, now};
  answer_.reset();
  auto staged = Make<wire::Staged>(wire::Kind::kStaged);
  staged.epoch = epoch_;
  staged.step = step;
  staged.attempt = attempt;
  staged.bucket = bucket;
  return staged;
}

bool NodeReduce::IsOfJob(const wire::BucketWord& message) const {
  return job_.has_value() && job_->step == message.step &&
         job_->attempt == message.attempt && job_->bucket == message.bucket &&
         (message.epoch == epoch_ || message.epoch == 0);
}

void NodeReduce::On(Time now, const wire::BucketWord& message) {
  if (!IsOfJob(message) || stopping_since_.has_value()) return;
  switch (message.header.kind) {
    case wire::Kind::kGo:
      if (job_->going) return;
      job_->going = true;
      counted_.staged_seconds += Seconds(now - job_->staged);
      return comm_->Reduce(job_->buffers);
    case wire::Kind::kTaken:
      if (!job_->going) return;
      ++counted_.taken;
      return Finish(rank_ == 0 ? PT_PATH_LEADER : PT_PATH_FOLLOWER);
    default:
      if (!job_->going) Finish(PT_PATH_HOST);
  }
}

void NodeReduce::On(Time now, const wire::Close& message) {
  if (epoch_ != 0 && message.epoch != epoch_) return;
  epoch_ = 0;
  opened_ = false;
  closed_ = true;
  reason_ = message.text;
  if (comm_ != nullptr) comm_->Stop();
  if (!job_.has_value()) return;
  if (job_->going) {
    stopping_since_ = now;
    return OnTick(now);
  }
  Finish(PT_PATH_HOST);
}

void NodeReduce::Finish(pt_path path, std::string lost) {
  if (path == PT_PATH_HOST) ++counted_.by_host;
  job_.reset();
  stopping_since_.reset();
  answer_ = Answer{path, std::move(lost)};
}

std::optional<NodeReduce::Answer> NodeReduce::TakeAnswer() {
  return std::exchange(answer_, std::nullopt);
}

void NodeReduce::OnTick(Time now) {
  if (!stopping_since_.has_value()) return;
  const Time waited = now - *stopping_since_;
  if (!stopped_ && waited < kStopPatience) return;
  const int state = comm_->QueryStream(job_->buffers.stream);
  if (state == 0) return Finish(PT_PATH_HOST);
  if (state == cuda::kErrorNotReady && waited < kStreamPatience) return;
  const std::string what = state == cuda::kErrorNotReady
                               ? "its kernel is still there after 4 s"
                               : setup_->driver->Words("cuStreamQuery", state);
  Finish(PT_PATH_HOST, what);
}

std::vector<NodeReduce::Reply> NodeReduce::TakeReplies(Time now) {
  std::vector<Reply> replies;
  if (comm_ == nullptr) return replies;
  while (std::optional<nccl::Communicator::Outcome> outcome = comm_->Take()) {
    if (outcome->what == Done::kStopped) stopped_ = true;
    if (epoch_ == 0) continue;  // Closed meanwhile.
    if (outcome->what == Done::kId) {
      auto id = Make<wire::CollectiveId>(wire::Kind::kCollectiveId);
      id.epoch = epoch_;
      std::memcpy(id.id, outcome->id.internal, sizeof(id.id));
      replies.emplace_back(id);
    } else if (outcome->what == Done::kOpened) {
      opened_ = true;
      auto opened = Make<wire::Opened>(wire::Kind::kOpened);
      opened.epoch = epoch_;
      replies.emplace_back(opened);
    } else if (outcome->what == Done::kReduced && job_.has_value()) {
      counted_.nccl_seconds += Seconds(outcome->took);
      auto reduced = Make<wire::BucketWord>(wire::Kind::kReduced);
      reduced.epoch = epoch_;
      reduced.step = job_->step;
      reduced.attempt = job_->attempt;
      reduced.bucket = job_->bucket;
      replies.emplace_back(reduced);
    } else if (outcome->what == Done::kFailed) {
      auto failed = Make<wire::CollectiveFailed>(wire::Kind::kCollectiveFailed);
      failed.epoch = epoch_;
      SetText(failed.text, outcome->text);
      replies.emplace_back(failed);
    }
  }
  OnTick(now);
  return replies;
}

pt_node NodeReduce::report() const {
  pt_node report = counted_;
  report.open = open() ? 1 : 0;
  report.pending = !open() && !closed_ ? 1 : 0;
  if (!open()) SetText(report.reason, reason_);
  return report;
}

}  // namespace pactrain::trainer
