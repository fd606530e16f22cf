// The node reduce of one generation at one agent: which trainers sum buckets
// among themselves by NCCL, when they begin, and when that is over.
//
// Rules:
//   - A bucket is taken by all members or by none; one that is not taken goes
//     by the host at all of them, in the same attempt.
//   - Nobody begins an exchange before all members hold the bucket, alike.
//   - Each Staged is answered: by Go, ByHost or Close; and a Go by Taken or
//     Close. Each wait has a bound.
//   - After the first failure there is no other communicator: a generation goes
//     on by the host.
//
// What is said is wire messages for members, numbered as given. Pure.
// Thread-compatible.
#ifndef PACTRAIN_AGENT_CORE_COLLECTIVE_H_
#define PACTRAIN_AGENT_CORE_COLLECTIVE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "trainer/wire.h"

namespace pactrain::agent {

// Why a generation's buckets go by the host, or one bucket did.
enum class Fallback {
  kUnfit,    // The node's trainers cannot: Collective::Unfit().
  kOpening,  // The communicator did not open, or not in time.
  kError,    // A trainer said that NCCL failed.
  kTimeout,  // Not all had reduced a bucket in time.
  kLost,     // A trainer left.
  kBucket,   // One bucket, by a trainer that sent it by the host, or a step
             // that became dense: the communicator lives on.
};
inline constexpr size_t kFallbacks = 6;
const char* FallbackName(Fallback fallback);

// Grows while the agent lives, over all generations of a group.
struct CollectiveCounters {
  uint64_t taken_buckets = 0;
  std::array<uint64_t, kFallbacks> fallbacks = {};
  absl::Duration staged_to_go;  // From the first Staged of a bucket to its Go,
  absl::Duration go_to_taken;   // and on to Taken: in NCCL, with its answers.

  CollectiveCounters& operator+=(const CollectiveCounters& other);
};

class Collective {
 public:
  struct Member {
    uint32_t rank = 0;
    uint32_t nccl_version = 0;  // As wire::Hello has it.
    std::string device;
    std::string gpu = {};
  };
  struct Limits {
    absl::Duration open = absl::Minutes(2);  // From Begin() to the last Opened.
    // From the first Staged of a bucket to the last one.
    absl::Duration stage = absl::Minutes(30);
    // From Go to the last Reduced: at least this, and for the first bucket
    // more, since NCCL connects then.
    absl::Duration exchange = absl::Seconds(2);
    absl::Duration first_exchange = absl::Seconds(15);
    // An exchange that takes 20 times as long as at this rate has failed.
    double bytes_per_second = 1e9;
  };
  using Message =
      std::variant<wire::MakeId, wire::Open, wire::BucketWord, wire::Close>;
  struct Say {
    size_t member = 0;
    Message message;
  };
  using Says = std::vector<Say>;
  enum class Phase { kNone, kOpening, kReady, kOff };

  // `members` by rank; the first one leads.
  Collective(std::vector<Member> members, const Limits& limits);

  // Why these cannot reduce among themselves; empty: they can, or nobody asks
  // for it.
  static std::string Unfit(const std::vector<Member>& members);

  // To be called once, and first.
  Says Begin(absl::Duration now);

  // What a member said. Of another epoch than the open one it is ignored.
  Says OnId(size_t member, const wire::CollectiveId& message);
  Says OnOpened(size_t member, const wire::Opened& message);
  Says OnStaged(size_t member, const wire::Staged& message, absl::Duration now);
  Says OnReduced(size_t member, const wire::BucketWord& message,
                 absl::Duration now);
  Says OnFailed(size_t member, const wire::CollectiveFailed& message);

  // The member submits this bucket by the host.
  Says OnHostSubmit(size_t member, uint64_t step, uint32_t attempt,
                    uint32_t bucket);
  // Another attempt, of this step or the next, is open: what was taken before
  // counts no more.
  Says OnAttempt();
  // The member left.
  Says OnLost(size_t member);
  Says Tick(absl::Duration now);

  // All members have reduced this bucket, of the open attempt.
  bool IsTaken(uint64_t step, uint32_t attempt, uint32_t bucket) const;

  Phase phase() const { return phase_; }
  // In kOff: why. One line.
  const std::string& reason() const { return reason_; }
  const CollectiveCounters& counters() const { return counters_; }

 private:
  // A bucket's place in the order of all.
  struct Key {
    uint64_t step = 0;
    uint32_t attempt = 0;
    uint32_t bucket = 0;
    auto operator<=>(const Key&) const = default;
  };
  // The bucket that some have staged. All work on one at a time.
  struct Exchange {
    Key key;
    std::vector<std::optional<wire::Staged>> staged;  // By member.
    std::vector<bool> reduced;
    absl::Duration since;  // Of the first Staged.
    std::optional<absl::Duration> go;
    absl::Duration bound;  // After `go`.
  };
  static Key KeyOf(const wire::Staged& message) {
    return {message.step, message.attempt, message.bucket};
  }

  bool open() const {
    return phase_ == Phase::kOpening || phase_ == Phase::kReady;
  }
  Says Fail(Fallback fallback, const std::string& reason);
  // Those that have staged the bucket send it by the host.
  Says SendByHost();
  Says Go(absl::Duration now);
  static wire::BucketWord Word(wire::Kind kind, wire::CollectiveEpoch epoch,
                               const Key& key);
  Says ToAll(const Message& message) const;
  std::string Name(size_t member) const;

  const std::vector<Member> members_;
  const Limits limits_;
  Phase phase_ = Phase::kNone;
  std::string reason_;
  wire::CollectiveEpoch epoch_ = 1;
  absl::Duration begun_;
  bool has_id_ = false;
  std::vector<bool> opened_;                // By member.
  std::vector<std::optional<Key>> hosted_;  // The newest each sent by the host.
  std::optional<Exchange> exchange_;
  bool exchanged_ = false;  // A bucket has been taken.
  std::set<Key> taken_;     // Of the open attempt.
  CollectiveCounters counters_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_COLLECTIVE_H_
