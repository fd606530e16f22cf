// The open step as far as the trainers of one node go: checks that their
// submits agree and adds up their slots.
//
// Rules:
//   - What all local trainers have filled of a bucket, alike, is summed, in
//     rank order, in fp32, into memory of its own: what a retry sends again.
//   - Of a bucket that they have reduced themselves the first one's slot counts
//     alone, as if it were the only one: a NaN is the one that others have.
//   - What one trainer says that another contradicts fails the attempt with a
//     text that names both.
//
// Pure but for reading the slots. Thread-compatible.
#ifndef PACTRAIN_AGENT_CORE_LOCAL_STEP_H_
#define PACTRAIN_AGENT_CORE_LOCAL_STEP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "agent/core/share_out.h"
#include "protocol/frame.h"
#include "trainer/wire.h"

namespace pactrain::agent {

// Why an attempt cannot be committed.
struct Problem {
  protocol::Cause cause = protocol::Cause::kNone;
  std::string detail;
};

class LocalStep {
 public:
  struct Member {
    uint32_t rank = 0;
    absl::Span<const uint8_t> slot;  // Of one size at all members.
  };
  // `members` by rank. `generation` and `model` go into the contexts.
  LocalStep(std::vector<Member> members, const protocol::Digest& generation,
            uint16_t model, ShareOut share_out = DoAlone);

  // Forgets all buckets. The trainers name `attempt` from now on; `dense`: all
  // elements in fp32 whatever `decision` says. `measure`: squares() is wanted.
  void Reset(const protocol::Decision& decision, uint16_t attempt, bool dense,
             bool measure);

  struct Bucket {
    protocol::BucketContext context;
    uint64_t offset = 0;  // In slot and result, bytes.
    bool last = false;
    uint32_t first_rank = 0;  // Who submitted it first.
    // By trainer, elements; none: it has submitted nothing of the bucket.
    std::vector<std::optional<uint64_t>> filled;
    bool reduced = false;         // The first member's slot has the sum of all.
    std::vector<double> squares;  // If so: by trainer, as submitted.
    bool broken = false;          // A problem was found: no more sums.
    std::shared_ptr<float[]> sum;  // Once all have begun to submit it.
    uint64_t summed = 0;           // Elements of it that are final.
  };

  // Takes a bucket of `members[index]`, or a piece of one. Returns the problem
  // if it brings one.
  //   InvalidArgument: it breaks the protocol of trainer/wire.h.
  absl::StatusOr<std::optional<Problem>> Add(int index,
                                             const wire::Submit& submit);

  uint16_t attempt() const { return attempt_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  bool opened() const { return !buckets_.empty(); }
  // `members[index]` has submitted the last bucket.
  bool Finished(int index) const { return finished_[index]; }
  bool complete() const;  // All have.
  // Bucket `index` is there or can still come.
  bool Expects(uint32_t index) const;
  const protocol::Digest& parameters() const { return parameters_; }
  // ||g_i||^2 of all local trainers over what is summed, if measured.
  double squares() const { return squares_; }
  // "rank 3 has not submitted bucket 2"; empty if complete.
  std::string MissingText() const;

 private:
  absl::Status Check(int index, const wire::Submit& submit) const;
  protocol::BucketContext ContextOf(const wire::Submit& submit) const;
  std::optional<Problem> Compare(const Bucket& bucket, uint32_t rank,
                                 const wire::Submit& submit) const;
  std::optional<Problem> AddParameters(uint32_t rank,
                                       const protocol::Digest& digest);
  // Sums what all have filled since the last time.
  void Sum(Bucket& bucket);
  std::shared_ptr<float[]> TakeSum(const Bucket& bucket);

  const std::vector<Member> members_;
  const protocol::Digest generation_;
  const uint16_t model_;
  const ShareOut share_out_;
  protocol::Decision decision_;
  uint16_t attempt_ = 1;
  bool dense_ = false;
  bool measure_ = false;
  double squares_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<uint32_t> next_bucket_;  // By trainer.
  std::vector<bool> finished_;         // By trainer: the last bucket is in.
  // Memory of sums by bucket, kept for the next step: fresh memory comes page
  // by page from the system, which takes longer than the sum itself.
  struct SumMemory {
    uint64_t elements = 0;
    std::shared_ptr<float[]> values;
  };
  std::vector<SumMemory> sum_memory_;
  protocol::Digest parameters_;
  std::optional<uint32_t> parameters_rank_;
};

// How two descriptions of one bucket differ; kNone if they do not.
protocol::Cause Difference(const protocol::BucketContext& a,
                           const protocol::BucketContext& b);
// "1000 elements of layout 1a2b3c4d (float32, COMPACTED fp32, ...)"
std::string Describe(const protocol::BucketContext& context);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_LOCAL_STEP_H_
