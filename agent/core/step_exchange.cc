#include "agent/core/step_exchange.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/weakened.h"

namespace pactrain::agent {

using protocol::BucketContext;
using protocol::Cause;

const BucketContext* StepExchange::ContextOf(uint32_t bucket) const {
  auto it = exchanges_.find(bucket);
  return it == exchanges_.end() ? nullptr : &it->second.context();
}

ExchangeNoise StepExchange::Noise() const {
  ExchangeNoise noise;
  for (const auto& [bucket, exchange] : exchanges_) noise += exchange.noise();
  return noise;
}

int StepExchange::HeldBeyond(uint32_t buckets) const {
  auto it = held_.lower_bound(buckets);
  return it == held_.end() ? -1 : it->second.front().member;
}

std::optional<Problem> StepExchange::Open(const BucketContext& context,
                                          std::shared_ptr<const float[]> local,
                                          absl::Span<float> result,
                                          std::vector<OutgoingFrame>& out) {
  BucketExchange::Options options;
  options.schedule = options_.schedule;
  options.context = context;
  options.step = options_.step;
  options.dither_step = options_.dither_step;
  options.attempt = options_.attempt;
  options.measure = options_.measure && context.op == protocol::Op::kSum;
  options.shorter = options_.shorter;
  options.local = std::move(local);
  options.result = result;
  BucketExchange& exchange =
      exchanges_.try_emplace(context.bucket, options).first->second;
  if (exchange.done()) ++done_buckets_;  // It has no elements.
  FollowWritten();
  auto node = held_.extract(context.bucket);
  if (node.empty()) return std::nullopt;
  std::optional<Problem> problem;
  for (const IncomingFrame& frame : node.mapped()) {
    held_bytes_ -= frame.payload.bytes.size();
    if (!problem) problem = Deliver(exchange, frame, out);
  }
  return problem;
}

std::optional<Problem> StepExchange::Extend(uint32_t bucket, uint64_t elements,
                                            std::vector<OutgoingFrame>& out) {
  BucketExchange& exchange = exchanges_.at(bucket);
  if (exchange.local_elements() == elements) return std::nullopt;
  const bool was_done = exchange.done();
  return Settle(exchange, was_done, exchange.Extend(elements, out));
}

std::optional<Problem> StepExchange::Settle(const BucketExchange& exchange,
                                            bool was_done,
                                            const absl::Status& status) {
  if (exchange.done() && !was_done) ++done_buckets_;
  FollowWritten();
  if (status.ok()) return std::nullopt;
  return Problem{Cause::kChecksum, std::string(status.message())};
}

void StepExchange::FollowWritten() {
  for (auto it = exchanges_.find(written_.bucket); it != exchanges_.end();
       it = exchanges_.find(written_.bucket)) {
    const BucketExchange& exchange = it->second;
    const absl::Span<const float> result = exchange.written();
    if (written_.elements == 0 && (!result.empty() || exchange.done())) {
      digest_->Add(exchange.digest());
    }
    const uint64_t fresh = result.size() - written_.elements;
    digest_->AddRaw(result.data() + written_.elements, fresh * sizeof(float));
    written_.elements = result.size();
    written_.total += fresh;
    if (!exchange.done()) return;
    ++written_.bucket;
    written_.elements = 0;
  }
}

std::optional<Problem> StepExchange::Receive(IncomingFrame frame,
                                             std::vector<OutgoingFrame>& out) {
  auto it = exchanges_.find(frame.header.bucket);
  if (it != exchanges_.end()) return Deliver(it->second, frame, out);
  held_bytes_ += frame.payload.bytes.size();
  held_[frame.header.bucket].push_back(std::move(frame));
  return std::nullopt;
}

std::optional<Problem> StepExchange::Deliver(BucketExchange& exchange,
                                             const IncomingFrame& frame,
                                             std::vector<OutgoingFrame>& out) {
  if (frame.header.context != exchange.digest() &&
      !PT_WEAKENED(ContextsMayDiffer)) {
    const BucketContext& ours = exchange.context();
    return Problem{
        Difference(ours, frame.context),
        absl::StrFormat("bucket %d: %s has %s, %s has %s", ours.bucket,
                        (*options_.names)[options_.schedule->me()],
                        Describe(ours), (*options_.names)[frame.member],
                        Describe(frame.context))};
  }
  const bool was_done = exchange.done();
  return Settle(
      exchange, was_done,
      exchange.Receive(frame.member, frame.header, frame.payload, out));
}

}  // namespace pactrain::agent
