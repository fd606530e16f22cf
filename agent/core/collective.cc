#include "agent/core/collective.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/core/wire_convert.h"
#include "base/check.h"

namespace pactrain::agent {
namespace {

constexpr double kSlack = 20;  // Times what an exchange is thought to take.

std::string VersionText(uint32_t version) {
  return absl::StrFormat("%d.%d.%d", version / 10000, version / 100 % 100,
                         version % 100);
}

bool All(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), false) == flags.end();
}

bool IsAlike(const wire::Staged& a, const wire::Staged& b) {
  return a.elements == b.elements && a.dtype == b.dtype &&
         a.decision_version == b.decision_version &&
         FromWire(a.bucket_layout) == FromWire(b.bucket_layout) &&
         FromWire(a.mask_digest) == FromWire(b.mask_digest);
}

}  // namespace

const char* FallbackName(Fallback fallback) {
  switch (fallback) {
    case Fallback::kUnfit:
      return "unfit";
    case Fallback::kOpening:
      return "opening";
    case Fallback::kError:
      return "error";
    case Fallback::kTimeout:
      return "timeout";
    case Fallback::kLost:
      return "lost";
    case Fallback::kBucket:
      return "bucket";
  }
  return "unknown";
}

CollectiveCounters& CollectiveCounters::operator+=(
    const CollectiveCounters& other) {
  taken_buckets += other.taken_buckets;
  for (size_t f = 0; f < kFallbacks; ++f) fallbacks[f] += other.fallbacks[f];
  staged_to_go += other.staged_to_go;
  go_to_taken += other.go_to_taken;
  return *this;
}

Collective::Collective(std::vector<Member> members, const Limits& limits)
    : members_(std::move(members)),
      limits_(limits),
      opened_(members_.size(), false),
      hosted_(members_.size()) {}

std::string Collective::Unfit(const std::vector<Member>& members) {
  const auto asks = [](const Member& m) { return m.nccl_version != 0; };
  const auto first = std::find_if(members.begin(), members.end(), asks);
  if (first == members.end()) return "";
  if (members.size() == 1) {
    return absl::StrFormat("rank %d is the only one of its model on this node",
                           first->rank);
  }
  for (const Member& member : members) {
    if (!asks(member)) {
      return absl::StrFormat(
          "rank %d asks for NCCL, rank %d of the same node does not: it is on "
          "a CPU, or its PACTRAIN_DEVICE_PATH is another",
          first->rank, member.rank);
    }
    if (member.nccl_version != first->nccl_version) {
      return absl::StrFormat("rank %d has NCCL %s, rank %d of the same node %s",
                             first->rank, VersionText(first->nccl_version),
                             member.rank, VersionText(member.nccl_version));
    }
    if (absl::StartsWith(member.device, "MIG-")) {
      return absl::StrFormat(
          "rank %d is on a part of a GPU (%s), between which NCCL does not "
          "work",
          member.rank, member.device);
    }
    if (member.gpu != first->gpu) {
      return absl::StrFormat(
          "rank %d is on a GPU of another kind (%s, %s) than rank %d of the "
          "same node (%s, %s)",
          member.rank, member.gpu, member.device, first->rank, first->gpu,
          first->device);
    }
    const auto twin = std::find_if(
        members.begin(), members.end(),
        [&](const Member& other) { return other.device == member.device; });
    if (twin->rank != member.rank) {
      return absl::StrFormat("ranks %d and %d are on one GPU (%s)", twin->rank,
                             member.rank, member.device);
    }
  }
  return "";
}

std::string Collective::Name(size_t member) const {
  return absl::StrCat("rank ", members_[member].rank);
}

wire::BucketWord Collective::Word(wire::Kind kind, wire::CollectiveEpoch epoch,
                                  const Key& key) {
  auto word = MakeMessage<wire::BucketWord>(kind);
  word.epoch = epoch;
  word.step = key.step;
  word.attempt = key.attempt;
  word.bucket = key.bucket;
  return word;
}

Collective::Says Collective::ToAll(const Message& message) const {
  Says says;
  for (size_t m = 0; m < members_.size(); ++m) says.push_back({m, message});
  return says;
}

Collective::Says Collective::Fail(Fallback fallback,
                                  const std::string& reason) {
  ++counters_.fallbacks[static_cast<size_t>(fallback)];
  phase_ = Phase::kOff;
  reason_ = reason;
  exchange_.reset();
  auto close = MakeMessage<wire::Close>(wire::Kind::kClose);
  close.epoch = std::exchange(epoch_, epoch_ + 1);
  SetText(reason, close.text);
  Says says;
  for (size_t m = 0; m < members_.size(); ++m) {
    if (members_[m].nccl_version != 0) says.push_back({m, close});
  }
  return says;
}

Collective::Says Collective::Begin(absl::Duration now) {
  PT_CHECK(phase_ == Phase::kNone);
  begun_ = now;
  if (std::none_of(members_.begin(), members_.end(),
                   [](const Member& m) { return m.nccl_version != 0; })) {
    return {};
  }
  if (const std::string unfit = Unfit(members_); !unfit.empty()) {
    return Fail(Fallback::kUnfit, unfit);
  }
  phase_ = Phase::kOpening;
  auto make = MakeMessage<wire::MakeId>(wire::Kind::kMakeId);
  make.epoch = epoch_;
  return {{0, make}};
}

Collective::Says Collective::OnId(size_t member,
                                  const wire::CollectiveId& message) {
  if (message.epoch != epoch_ || phase_ != Phase::kOpening || has_id_ ||
      member != 0) {
    return {};
  }
  has_id_ = true;
  Says says;
  for (size_t m = 0; m < members_.size(); ++m) {
    auto open = MakeMessage<wire::Open>(wire::Kind::kOpen);
    open.epoch = epoch_;
    open.rank = static_cast<uint32_t>(m);
    open.ranks = static_cast<uint32_t>(members_.size());
    std::memcpy(open.id, message.id, sizeof(open.id));
    says.push_back({m, open});
  }
  return says;
}

Collective::Says Collective::OnOpened(size_t member,
                                      const wire::Opened& message) {
  if (message.epoch != epoch_ || phase_ != Phase::kOpening || !has_id_) {
    return {};
  }
  opened_[member] = true;
  if (All(opened_)) phase_ = Phase::kReady;
  return {};
}

Collective::Says Collective::OnStaged(size_t member,
                                      const wire::Staged& message,
                                      absl::Duration now) {
  const Key key = KeyOf(message);
  // Close is on its way.
  if (message.epoch != epoch_ || !open()) return {};
  // Somebody is not as far as to stage it, or did not: nobody waits for that.
  const bool sent = std::any_of(
      hosted_.begin(), hosted_.end(),
      [&](const std::optional<Key>& hosted) { return hosted >= key; });
  if (phase_ != Phase::kReady || sent) {
    ++counters_.fallbacks[static_cast<size_t>(Fallback::kBucket)];
    return {{member, Word(wire::Kind::kByHost, epoch_, key)}};
  }
  if (!exchange_) {
    exchange_ = Exchange{};
    exchange_->key = key;
    exchange_->since = now;
    exchange_->staged.resize(members_.size());
    exchange_->reduced.assign(members_.size(), false);
  }
  if (exchange_->key != key || exchange_->staged[member]) {
    return Fail(Fallback::kError,
                absl::StrFormat("%s staged bucket %d of step %d out of order",
                                Name(member), key.bucket, key.step));
  }
  exchange_->staged[member] = message;
  const wire::Staged* first = nullptr;
  bool alike = true;
  for (const auto& staged : exchange_->staged) {
    if (!staged) return {};
    if (first == nullptr) first = &*staged;
    alike = alike && IsAlike(*first, *staged);
  }
  // What they submit by the host says which differs, and how.
  return alike ? Go(now) : SendByHost();
}

Collective::Says Collective::Go(absl::Duration now) {
  const double bytes =
      4.0 * static_cast<double>(exchange_->staged[0]->elements);
  const absl::Duration least =
      exchanged_ ? limits_.exchange : limits_.first_exchange;
  exchange_->go = now;
  exchange_->bound =
      std::max(least, absl::Seconds(kSlack * bytes / limits_.bytes_per_second));
  counters_.staged_to_go += now - exchange_->since;
  return ToAll(Word(wire::Kind::kGo, epoch_, exchange_->key));
}

Collective::Says Collective::SendByHost() {
  Says says;
  for (size_t m = 0; m < members_.size(); ++m) {
    if (!exchange_->staged[m]) continue;
    says.push_back({m, Word(wire::Kind::kByHost, epoch_, exchange_->key)});
  }
  ++counters_.fallbacks[static_cast<size_t>(Fallback::kBucket)];
  exchange_.reset();
  return says;
}

Collective::Says Collective::OnReduced(size_t member,
                                       const wire::BucketWord& message,
                                       absl::Duration now) {
  if (message.epoch != epoch_ || !open()) return {};
  const Key key = {message.step, message.attempt, message.bucket};
  if (!exchange_ || exchange_->key != key || !exchange_->go) {
    return Fail(Fallback::kError,
                absl::StrFormat("%s reduced bucket %d of step %d, which nobody "
                                "was told to begin",
                                Name(member), key.bucket, key.step));
  }
  exchange_->reduced[member] = true;
  if (!All(exchange_->reduced)) return {};
  ++counters_.taken_buckets;
  counters_.go_to_taken += now - *exchange_->go;
  exchanged_ = true;
  taken_.insert(key);
  exchange_.reset();
  return ToAll(Word(wire::Kind::kTaken, epoch_, key));
}

Collective::Says Collective::OnFailed(size_t member,
                                      const wire::CollectiveFailed& message) {
  if (message.epoch != epoch_ || !open()) return {};
  return Fail(phase_ == Phase::kOpening ? Fallback::kOpening : Fallback::kError,
              absl::StrCat(Name(member), ": ", GetText(message.text)));
}

Collective::Says Collective::OnHostSubmit(size_t member, uint64_t step,
                                          uint32_t attempt, uint32_t bucket) {
  const Key key = {step, attempt, bucket};
  hosted_[member] = key;
  if (!exchange_ || exchange_->key != key) return {};
  if (exchange_->go) {
    return Fail(
        Fallback::kError,
        absl::StrFormat("%s sent bucket %d of step %d by the host while "
                        "it was reduced",
                        Name(member), bucket, step));
  }
  return SendByHost();
}

Collective::Says Collective::OnAttempt() {
  taken_.clear();
  // What NCCL is at it finishes: the next attempt does not ask for it.
  if (!exchange_ || exchange_->go) return {};
  return SendByHost();
}

Collective::Says Collective::OnLost(size_t member) {
  if (!open()) return {};
  Says says = Fail(Fallback::kLost, Name(member) + " left");
  std::erase_if(says, [&](const Say& say) { return say.member == member; });
  return says;
}

Collective::Says Collective::Tick(absl::Duration now) {
  if (phase_ == Phase::kOpening && now - begun_ >= limits_.open) {
    const auto missing =
        has_id_
            ? std::find(opened_.begin(), opened_.end(), false) - opened_.begin()
            : 0;
    return Fail(Fallback::kOpening,
                absl::StrFormat("%s has not opened it in %s",
                                Name(static_cast<size_t>(missing)),
                                absl::FormatDuration(limits_.open)));
  }
  if (!exchange_) return {};
  if (!exchange_->go) {
    return now - exchange_->since >= limits_.stage ? SendByHost() : Says{};
  }
  if (now - *exchange_->go < exchange_->bound) return {};
  const auto missing =
      std::find(exchange_->reduced.begin(), exchange_->reduced.end(), false) -
      exchange_->reduced.begin();
  return Fail(Fallback::kTimeout,
              absl::StrFormat("%s had not reduced bucket %d of step %d after "
                              "%s",
                              Name(static_cast<size_t>(missing)),
                              exchange_->key.bucket, exchange_->key.step,
                              absl::FormatDuration(exchange_->bound)));
}

bool Collective::IsTaken(uint64_t step, uint32_t attempt,
                         uint32_t bucket) const {
  return taken_.count({step, attempt, bucket}) > 0;
}

}  // namespace pactrain::agent
