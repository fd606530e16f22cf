// The data plane of one attempt of a step at one agent: its buckets' exchanges,
// and the frames that came before their bucket was submitted here.
//
// Rule: a frame is given to its bucket only if its context equals the local
// one.
//
// Pure but for writing results. Thread-compatible.
#ifndef PACTRAIN_AGENT_CORE_STEP_EXCHANGE_H_
#define PACTRAIN_AGENT_CORE_STEP_EXCHANGE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "agent/core/local_step.h"
#include "agent/exchange/bucket_exchange.h"
#include "agent/exchange/payload.h"
#include "agent/exchange/schedule.h"
#include "base/digest.h"
#include "protocol/frame.h"

namespace pactrain::agent {

// A data frame as it came, with what its context digest stands for.
struct IncomingFrame {
  int member = 0;
  protocol::BucketContext context;
  protocol::FrameHeader header;
  Payload payload;
};

class StepExchange {
 public:
  struct Options {
    const Schedule* schedule = nullptr;
    const std::vector<std::string>* names = nullptr;  // Of the members.
    uint64_t step = 0;
    uint64_t dither_step = 0;  // As DitherKey() counts.
    uint16_t attempt = 1;
    bool measure = false;  // The noise of buckets of gradients.
    bool shorter = true;   // As BucketExchange::Options.
  };
  // What the pointers name outlives the exchange.
  explicit StepExchange(const Options& options)
      : options_(options), digest_(std::make_unique<base::DigestBuilder>()) {}

  bool opened(uint32_t bucket) const { return exchanges_.count(bucket) > 0; }
  bool any_opened() const { return !exchanges_.empty(); }
  size_t done_buckets() const { return done_buckets_; }

  // Takes the frames that were held for a bucket. `local` as Extend() says.
  std::optional<Problem> Open(const protocol::BucketContext& context,
                              std::shared_ptr<const float[]> local,
                              absl::Span<float> result,
                              std::vector<OutgoingFrame>& out);
  // The first `elements` of a bucket's local sum are final: sends. They grow.
  // REQUIRES: opened(bucket).
  std::optional<Problem> Extend(uint32_t bucket, uint64_t elements,
                                std::vector<OutgoingFrame>& out);
  // Takes a frame of this step and attempt, or holds it for its bucket.
  std::optional<Problem> Receive(IncomingFrame frame,
                                 std::vector<OutgoingFrame>& out);
  // Null: not opened.
  const protocol::BucketContext* ContextOf(uint32_t bucket) const;
  // The sender of a frame that is held for a bucket from `buckets` on; -1:
  // none.
  int HeldBeyond(uint32_t buckets) const;
  size_t held_bytes() const { return held_bytes_; }
  // Of all buckets, once they are done.
  ExchangeNoise Noise() const;
  // How far results are written without a gap; only grows.
  struct Written {
    uint32_t bucket = 0;    // All of the buckets before it,
    uint64_t elements = 0;  // and so many of it.
    uint64_t total = 0;     // Elements in all.
  };
  const Written& written() const { return written_; }
  // Over what every rank is about to use, and over what it is said to be.
  // REQUIRES: all buckets of the step are done.
  protocol::Digest ResultDigest() const { return digest_->Build(); }

 private:
  std::optional<Problem> Deliver(BucketExchange& exchange,
                                 const IncomingFrame& frame,
                                 std::vector<OutgoingFrame>& out);
  std::optional<Problem> Settle(const BucketExchange& exchange, bool was_done,
                                const absl::Status& status);
  // Moves written_ on, and digests what that passes: while it is in the cache.
  void FollowWritten();

  Options options_;
  std::map<uint32_t, BucketExchange> exchanges_;
  std::map<uint32_t, std::vector<IncomingFrame>> held_;  // By bucket.
  size_t held_bytes_ = 0;
  size_t done_buckets_ = 0;
  std::unique_ptr<base::DigestBuilder> digest_;
  Written written_;  // All of it is in the digest.
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_STEP_EXCHANGE_H_
