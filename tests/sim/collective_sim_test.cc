// Trainers that never open, never stage, go late, fail, hang and die, against
// one Collective, from a seed: each bucket is reduced by all or by none, and
// nobody waits for ever.
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "agent/core/collective.h"
#include "agent/core/wire_convert.h"
#include "gtest/gtest.h"
#include "tests/sim/random.h"

namespace pactrain::agent {
namespace {

constexpr uint64_t kSteps = 6;
constexpr uint32_t kBuckets = 4;
constexpr absl::Duration kTick = absl::Milliseconds(500);
constexpr absl::Duration kLong = absl::Minutes(5);

using Place = std::tuple<uint64_t, uint32_t, uint32_t>;  // Step, attempt, ...

struct Habits {
  bool never_opens = false;
  bool fails_to_open = false;
  // Of one exchange that it is told to begin, the n-th.
  int fails_at = -1;
  int hangs_at = -1;  // In NCCL: it still hears the agent.
  int late_at = -1;
  int dies_in = -1;
  // At one bucket that it comes to, the n-th.
  int stops_at = -1;  // For ever: it submits nothing any more.
  int dies_at = -1;
  int by_host_at = -1;  // It does not stage it.
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    const size_t ranks = 2 + random_.Below(7);
    std::vector<Collective::Member> members;
    for (size_t m = 0; m < ranks; ++m) {
      members.push_back(
          {static_cast<uint32_t>(m), 22907, absl::StrCat("GPU-", m)});
      trainers_.push_back({.habits = DrawHabits()});
    }
    limits_.stage = absl::Seconds(20);
    limits_.open = absl::Seconds(10);
    collective_.emplace(members, limits_);
    dense_at_ = random_.Chance(300) ? static_cast<int>(random_.Below(40)) : -1;
  }

  // What went wrong; empty: nothing.
  std::string Run() {
    Tell(collective_->Begin(now_));
    for (size_t m = 0; m < trainers_.size(); ++m) {
      Later(Delay(), [this, m] { Begin(m); });
    }
    At(kTick, [this] { Tick(); });
    while (!events_.empty() && wrong_.empty() && now_ < kLong) {
      now_ = events_.top().when;
      const auto run = events_.top().run;
      events_.pop();
      run();
    }
    if (wrong_.empty()) CheckEnd();
    return wrong_;
  }

  bool any_reduced() const { return any_reduced_; }
  const CollectiveCounters& counters() const { return collective_->counters(); }

 private:
  struct Trainer {
    Habits habits;
    std::set<wire::CollectiveEpoch> open = {};
    bool closed = false;
    bool gone = false;
    bool stopped = false;
    uint64_t step = 0;
    uint32_t attempt = 1;
    uint32_t bucket = 0;
    int begun = 0;      // Buckets that it came to.
    int exchanges = 0;  // That it was told to begin.
    bool waits = false;
    absl::Duration waits_since = {};
    absl::Duration heard = {};  // Messages keep their order.
    absl::Duration said = {};
  };
  struct Timed {
    absl::Duration when;
    uint64_t number;
    std::function<void()> run;
    bool operator<(const Timed& other) const {
      return std::tie(other.when, other.number) < std::tie(when, number);
    }
  };

  Habits DrawHabits() {
    Habits habits;
    const auto sometimes = [&](int permille, int below) {
      return random_.Chance(permille) ? static_cast<int>(random_.Below(below))
                                      : -1;
    };
    habits.never_opens = random_.Chance(20);
    habits.fails_to_open = random_.Chance(20);
    habits.fails_at = sometimes(60, 20);
    habits.hangs_at = sometimes(60, 20);
    habits.late_at = sometimes(60, 20);
    habits.dies_in = sometimes(20, 20);
    habits.stops_at = sometimes(30, 24);
    habits.dies_at = sometimes(30, 24);
    habits.by_host_at = sometimes(100, 24);
    return habits;
  }

  absl::Duration Delay() {
    return random_.Between(absl::Microseconds(10), random_.Chance(50)
                                                       ? absl::Seconds(3)
                                                       : absl::Milliseconds(2));
  }
  void At(absl::Duration when, std::function<void()> run) {
    events_.push({when, number_++, std::move(run)});
  }
  void Later(absl::Duration delay, std::function<void()> run) {
    At(now_ + delay, std::move(run));
  }

  // To the agent, in order.
  void Say(size_t m, std::function<Collective::Says()> call) {
    Trainer& trainer = trainers_[m];
    trainer.said = std::max(trainer.said, now_ + Delay());
    At(trainer.said, [this, call = std::move(call)] { Tell(call()); });
  }
  // To trainers, in order.
  void Tell(const Collective::Says& says) {
    for (const Collective::Say& say : says) {
      Trainer& trainer = trainers_[say.member];
      trainer.heard = std::max(trainer.heard, now_ + Delay());
      At(trainer.heard, [this, say] {
        if (trainers_[say.member].gone) return;
        std::visit([&](const auto& message) { Hear(say.member, message); },
                   say.message);
      });
    }
  }

  void Tick() {
    Tell(collective_->Tick(now_));
    for (size_t m = 0; m < trainers_.size(); ++m) {
      const Trainer& trainer = trainers_[m];
      if (trainer.waits && !trainer.gone &&
          now_ - trainer.waits_since >
              limits_.stage + limits_.first_exchange + absl::Seconds(10)) {
        Wrong(absl::StrCat("rank ", m, " waits for ever"));
      }
    }
    if (!Over()) Later(kTick, [this] { Tick(); });
  }

  bool Over() const {
    for (const Trainer& trainer : trainers_) {
      if (trainer.gone) return !AnyWaits();
      if (!trainer.stopped && trainer.step < kSteps) {
        return Stuck() && !AnyWaits();
      }
    }
    return !AnyWaits();
  }
  bool AnyWaits() const {
    for (const Trainer& trainer : trainers_) {
      if (trainer.waits && !trainer.gone) return true;
    }
    return false;
  }
  bool Stuck() const {
    for (const Trainer& trainer : trainers_) {
      if (trainer.stopped) return now_ > limits_.stage * 4;
    }
    return false;
  }

  void Begin(size_t m) {
    Trainer& trainer = trainers_[m];
    if (trainer.gone || trainer.step >= kSteps) return;
    const int number = trainer.begun++;
    if (number == trainer.habits.stops_at) {
      trainer.stopped = true;
      return;
    }
    if (number == trainer.habits.dies_at) {
      return Die(m);
    }
    if (trainer.closed || trainer.open.empty() || trainer.attempt > 1 ||
        number == trainer.habits.by_host_at) {
      return Submit(m, false);
    }
    auto staged = MakeMessage<wire::Staged>(wire::Kind::kStaged);
    staged.epoch = *trainer.open.begin();
    staged.step = trainer.step;
    staged.attempt = trainer.attempt;
    staged.bucket = trainer.bucket;
    staged.elements = 100;
    trainer.waits = true;
    trainer.waits_since = now_;
    Say(m, [this, m, staged]() -> Collective::Says {
      // As the group: what is of a past attempt is answered by itself.
      if (Stale(staged.step, staged.attempt)) {
        auto word = MakeMessage<wire::BucketWord>(wire::Kind::kByHost);
        word.step = staged.step;
        word.attempt = staged.attempt;
        word.bucket = staged.bucket;
        return {{m, word}};
      }
      staged_.insert({{staged.step, staged.attempt, staged.bucket}, m});
      return collective_->OnStaged(m, staged, now_);
    });
  }
  void Die(size_t m) {
    trainers_[m].gone = lost_ = true;
    Later(Delay(), [this, m] { Tell(collective_->OnLost(m)); });
  }
  bool Stale(uint64_t step, uint32_t attempt) const {
    return step < step_ || (step == step_ && attempt < attempt_);
  }

  void Hear(size_t m, const wire::MakeId& message) {
    auto id = MakeMessage<wire::CollectiveId>(wire::Kind::kCollectiveId);
    id.epoch = message.epoch;
    if (trainers_[m].habits.never_opens) return;
    Say(m, [this, m, id] { return collective_->OnId(m, id); });
  }
  void Hear(size_t m, const wire::Open& message) {
    const Habits& habits = trainers_[m].habits;
    if (habits.never_opens) return;
    if (habits.fails_to_open) return SayFailed(m, message.epoch);
    trainers_[m].open.insert(message.epoch);
    auto opened = MakeMessage<wire::Opened>(wire::Kind::kOpened);
    opened.epoch = message.epoch;
    Say(m, [this, m, opened] { return collective_->OnOpened(m, opened); });
  }
  void Hear(size_t m, const wire::Close&) {
    Trainer& trainer = trainers_[m];
    trainer.closed = true;
    if (trainer.waits) Submit(m, false);
  }
  void Hear(size_t m, const wire::BucketWord& word) {
    Trainer& trainer = trainers_[m];
    if (!trainer.waits) {  // A Close has answered before.
      if (!trainer.closed) Wrong("an answer that nobody waits for");
      return;
    }
    // Of a step that became dense since nothing is reduced.
    if (word.header.kind == wire::Kind::kTaken) {
      return Submit(m, word.attempt == trainer.attempt);
    }
    if (word.header.kind == wire::Kind::kByHost) return Submit(m, false);
    const Place place = {word.step, word.attempt, word.bucket};
    for (size_t other = 0; other < trainers_.size(); ++other) {
      if (staged_.count({place, other}) == 0) Wrong("Go before all staged");
    }
    const int number = trainer.exchanges++;
    if (number == trainer.habits.hangs_at) return;
    if (number == trainer.habits.dies_in) return Die(m);
    if (number == trainer.habits.fails_at) return SayFailed(m, word.epoch);
    auto reduced = word;
    reduced.header.kind = wire::Kind::kReduced;
    const bool late = number == trainer.habits.late_at;
    Later(late ? absl::Seconds(16) : Delay(), [this, m, reduced] {
      if (trainers_[m].gone || trainers_[m].closed) return;
      Say(m, [this, m, reduced] {
        return collective_->OnReduced(m, reduced, now_);
      });
    });
  }
  void SayFailed(size_t m, wire::CollectiveEpoch epoch) {
    auto failed =
        MakeMessage<wire::CollectiveFailed>(wire::Kind::kCollectiveFailed);
    failed.epoch = epoch;
    Say(m, [this, m, failed] { return collective_->OnFailed(m, failed); });
  }

  void Submit(size_t m, bool reduced) {
    Trainer& trainer = trainers_[m];
    trainer.waits = false;
    const Place place = {trainer.step, trainer.attempt, trainer.bucket};
    Say(m, [this, m, place, reduced] { return OnSubmit(m, place, reduced); });
    if (++trainer.bucket < kBuckets) {
      Later(Delay(), [this, m] { Begin(m); });
    }
  }

  // What the group does with a Submit.
  Collective::Says OnSubmit(size_t m, const Place& place, bool reduced) {
    const auto [step, attempt, bucket] = place;
    if (Stale(step, attempt)) return {};
    const bool taken = collective_->IsTaken(step, attempt, bucket);
    if (taken != reduced) {
      Wrong(absl::StrCat("rank ", m, " has bucket ", bucket, " of step ", step,
                         reduced ? " reduced" : " by the host", ", and it is ",
                         taken ? "" : "not ", "taken"));
    }
    const auto [it, fresh] = submitted_.try_emplace(place, reduced);
    if (it->second != reduced) Wrong("a bucket is mixed");
    any_reduced_ = any_reduced_ || reduced;
    if (!reduced) Tell(collective_->OnHostSubmit(m, step, attempt, bucket));
    if (static_cast<int>(++submits_) == dense_at_ && attempt_ == 1) {
      return NextAttempt();
    }
    if (bucket + 1 == kBuckets && ++finished_ == trainers_.size()) NextStep();
    return {};
  }
  Collective::Says NextAttempt() {
    ++attempt_;
    finished_ = 0;
    for (size_t m = 0; m < trainers_.size(); ++m) {
      Trainer& trainer = trainers_[m];
      trainer.heard = std::max(trainer.heard, now_ + Delay());
      At(trainer.heard, [this, m] { Resubmit(m); });
    }
    return collective_->OnAttempt();
  }
  // All that it submitted so far again, by the host; or once it waits no more.
  void Resubmit(size_t m) {
    Trainer& trainer = trainers_[m];
    if (trainer.gone || trainer.stopped) return;
    const uint32_t before = trainer.bucket;
    trainer.attempt = attempt_;
    for (uint32_t bucket = 0; bucket < before; ++bucket) {
      const Place place = {trainer.step, trainer.attempt, bucket};
      Say(m, [this, m, place] { return OnSubmit(m, place, false); });
    }
  }
  void NextStep() {
    finished_ = 0;
    attempt_ = 1;
    ++step_;
    Tell(collective_->OnAttempt());
    for (size_t m = 0; m < trainers_.size(); ++m) {
      Trainer& trainer = trainers_[m];
      trainer.heard = std::max(trainer.heard, now_ + Delay());
      At(trainer.heard, [this, m] {
        Trainer& next = trainers_[m];
        next.step = step_;
        next.attempt = 1;
        next.bucket = 0;
        Begin(m);
      });
    }
  }

  void CheckEnd() {
    bool stopped = false;
    for (size_t m = 0; m < trainers_.size(); ++m) {
      const Trainer& trainer = trainers_[m];
      stopped = stopped || trainer.stopped;
      if (trainer.waits && !trainer.gone) {
        Wrong(absl::StrCat("rank ", m, " waits at the end"));
      }
    }
    if (!stopped && !lost_ && step_ != kSteps) {
      Wrong(absl::StrCat("it ended in step ", step_, " of ", kSteps));
    }
  }
  void Wrong(const std::string& what) {
    if (wrong_.empty())
      wrong_ = absl::StrCat(what, " at ", absl::FormatDuration(now_));
  }

  sim::Random random_;
  Collective::Limits limits_;
  std::optional<Collective> collective_;
  std::vector<Trainer> trainers_;
  std::priority_queue<Timed> events_;
  uint64_t number_ = 0;
  absl::Duration now_ = {};
  std::set<std::pair<Place, size_t>> staged_;
  std::map<Place, bool> submitted_;
  // The group's.
  uint64_t step_ = 0;
  uint32_t attempt_ = 1;
  size_t finished_ = 0;
  uint64_t submits_ = 0;
  int dense_at_ = -1;
  bool lost_ = false;
  bool any_reduced_ = false;
  std::string wrong_;
};

uint64_t Seeds() {
  const char* seeds = std::getenv("COLLECTIVE_SEEDS");
  return seeds == nullptr ? 2000 : std::strtoull(seeds, nullptr, 10);
}

TEST(CollectiveSimTest, ABucketIsReducedByAllOrByNoneAndNobodyWaitsForEver) {
  uint64_t reduced = 0;
  std::array<uint64_t, kFallbacks> fallbacks = {};
  for (uint64_t seed = 0; seed < Seeds(); ++seed) {
    World world(seed);
    ASSERT_EQ(world.Run(), "") << "seed " << seed;
    if (world.any_reduced()) ++reduced;
    for (size_t f = 0; f < kFallbacks; ++f) {
      fallbacks[f] += world.counters().fallbacks[f];
    }
  }
  // It is tried: most worlds reduce something, and each failure comes about.
  EXPECT_GT(reduced, Seeds() / 2);
  for (size_t f = 1; f < kFallbacks; ++f) {
    EXPECT_GT(fallbacks[f], Seeds() / 50)
        << FallbackName(static_cast<Fallback>(f));
  }
}

}  // namespace
}  // namespace pactrain::agent
