// What befalls a run, and when.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace pactrain::sim {

namespace {

constexpr char kForgedClaim[] = "forged claim";
constexpr char kLyingMember[] = "lying member";
constexpr char kFalseParameters[] = "member lies of its parameters";

}  // namespace

const std::vector<Simulation::Kind>& Simulation::Kinds() {
  using S = Simulation;
  static const std::vector<Kind> kinds = {
      {"connection breaks", &S::BreakConnection},
      {"frame damaged", &S::DamageFrame},
      {"agents apart", &S::Part},
      {"agent killed", &S::KillAgent},
      {"stream breaks", &S::BreakStream},
      {"agent cut off from the coordinator", &S::CutOne},
      {"members cut off from the coordinator", &S::CutMembers},
      {"agent stopped", &S::StopAgent},
      {"coordinator killed", &S::KillCoordinator},
      {"coordinator stopped", &S::StopCoordinator},
      {"disk full", &S::FillDisk},
      {"old state directory", &S::RestoreDirectory},
      {"generation never begun", &S::LoseGeneration},
      {"donor lost", &S::LoseDonor},
      {"launch joins", &S::Join},
      {"second launch at an agent", &S::JoinAtMember},
      {"pin", &S::ChangePin},
      {"trainer killed", &S::KillTrainer},
      {"trainer stopped", &S::StopTrainer},
      {"trainer slow", &S::SlowTrainer},
      {"trainer rests", &S::RestTrainer},
      {"mask change of one", &S::ChangeMask},
      {"mask change of all", &S::ChangeMasks},
      {"wrong layout", &S::WrongLayout},
      {"wrong parameters", &S::WrongParameters},
      {"element outside the mask", &S::AddNoise},
  };
  return kinds;
}

void Simulation::PlanFaults() {
  std::vector<const Kind*> on;
  for (const Kind& kind : Kinds()) {
    on.push_back(&kind);
    std::swap(on.back(), on[random_.Below(on.size())]);
  }
  on.resize(on.size() / 2);
  const uint64_t count = 1 + random_.Below(random_.Chance(300) ? 20 : 6);
  for (uint64_t i = 0; i < count; ++i) {
    const Kind& kind = *on[random_.Below(on.size())];
    world_.After(random_.Between(Ms(300), faults_end_),
                 [this, &kind] { (this->*kind.run)(kind.name); });
  }
  // A matter of its own, so that the others come as they would without it.
  world_.faults.try_emplace(kForgedClaim, 0);
  for (uint64_t i = forger_.Below(4); elastic() && i > 0; --i) {
    world_.After(forger_.Between(Ms(300), faults_end_),
                 [this] { ForgeClaim(); });
  }
  world_.faults.try_emplace(kLyingMember, 0);
  world_.faults.try_emplace(kFalseParameters, 0);
  if (elastic() && liar_.Chance(500)) {
    world_.After(liar_.Between(Ms(300), faults_end_), [this] { LieOfState(); });
  }
}

// ---- Agents and what is between them ----

void Simulation::Break(const char* kind, absl::Duration shortest,
                       absl::Duration longest, bool damaged) {
  const size_t a = random_.Below(agents_.size());
  const size_t b = random_.Below(agents_.size());
  if (a == b) return;
  const absl::Duration time = random_.Between(shortest, longest);
  world_.CountFault(
      kind, absl::StrCat(agents_[a]->name(), " and ", agents_[b]->name(),
                         " for ", absl::FormatDuration(time)));
  network_->Break(a, b, time, damaged);
}

void Simulation::BreakConnection(const char* kind) {
  Break(kind, Ms(0), Ms(100), false);
}

void Simulation::DamageFrame(const char* kind) {
  Break(kind, Ms(0), Ms(100), true);
}

void Simulation::Part(const char* kind) {
  Break(kind, Ms(100), absl::Seconds(3), false);
}

void Simulation::KillAgent(const char* kind) {
  CrashAgent(kind, random_.Below(agents_.size()));
}

void Simulation::CrashAgent(const char* kind, size_t a) {
  if (!agents_[a]->alive()) return;
  if (kind != nullptr) world_.CountFault(kind, agents_[a]->name());
  agents_[a]->Crash();
  world_.After(random_.Between(Ms(50), absl::Seconds(2)),
               [this, a] { agents_[a]->Start(); });
}

void Simulation::BreakStream(const char* kind) {
  SimAgent& agent = *agents_[random_.Below(agents_.size())];
  world_.CountFault(kind, agent.name());
  agent.BreakStream();
}

absl::Duration Simulation::CutTime() {
  return random_.Between(Ms(100), absl::Seconds(random_.Chance(500) ? 5 : 30));
}

void Simulation::CutOne(const char* kind) {
  SimAgent& agent = *agents_[random_.Below(agents_.size())];
  const absl::Duration time = CutTime();
  world_.CountFault(
      kind, absl::StrCat(agent.name(), " for ", absl::FormatDuration(time)));
  agent.CutOff(time);
}

// All that train now, in the midst of which a launch may join elsewhere.
void Simulation::CutMembers(const char* kind) {
  const absl::Duration time = CutTime();
  std::string names;
  for (size_t a = 0; a < agents_.size(); ++a) {
    const bool is_member =
        std::any_of(seats_.begin(), seats_.end(), [&](const Seat& seat) {
          return seat.agent == a && seat.trainer->alive();
        });
    if (!is_member) continue;
    agents_[a]->CutOff(time);
    absl::StrAppend(&names, agents_[a]->name(), " ");
  }
  world_.CountFault(kind,
                    absl::StrCat(names, "for ", absl::FormatDuration(time)));
  if (elastic() && random_.Chance(700)) {
    world_.After(random_.Between(Ms(100), absl::Seconds(2)),
                 [this] { LaunchMore(spare_); });
  }
}

void Simulation::StopAgent(const char* kind) {
  const size_t a = random_.Below(agents_.size());
  if (!agents_[a]->alive()) return;
  const absl::Duration time = random_.Between(Ms(100), absl::Seconds(20));
  world_.CountFault(kind, absl::StrCat(agents_[a]->name(), " for ",
                                       absl::FormatDuration(time)));
  agents_[a]->Stop(time);
  constexpr absl::Duration kSilence = absl::Seconds(3);  // Then peers hang up.
  if (time <= kSilence) return;
  world_.After(kSilence, [this, a, time] {
    for (size_t b = 0; b < agents_.size(); ++b) {
      if (a != b) network_->Break(a, b, time - kSilence, false);
    }
  });
}

// ---- Coordinator ----

void Simulation::KillCoordinator(const char* kind) {
  if (!coordinator_->alive()) return;
  world_.CountFault(kind);
  CrashCoordinator();
}

void Simulation::CrashCoordinator() {
  if (!coordinator_->alive()) return;
  coordinator_->Crash();
  world_.After(random_.Between(Ms(50), absl::Seconds(4)),
               [this] { coordinator_->Start(); });
}

void Simulation::StopCoordinator(const char* kind) {
  if (!coordinator_->alive()) return;
  const absl::Duration time = random_.Between(Ms(100), absl::Seconds(20));
  world_.CountFault(kind, absl::FormatDuration(time));
  coordinator_->Stop(time);
}

void Simulation::FillDisk(const char* kind) {
  world_.CountFault(kind);
  coordinator_->FillDisk(random_.Between(Ms(100), absl::Seconds(3)));
}

void Simulation::RestoreDirectory(const char* kind) {
  if (coordinator_->Restore(random_.Between(Ms(50), absl::Seconds(2)),
                            random_.Between(Ms(500), absl::Seconds(8)))) {
    world_.CountFault(kind);
  }
}

// It is in the journal; the coordinator dies before it says so, or the members
// are lost to it, and one of their agents with its memory.
void Simulation::LoseGeneration(const char* kind) {
  if (!elastic()) return;
  coordinator_->LoseNextGeneration(
      [this, kind](const protocol::Generation& generation) {
        world_.CountFault(kind, absl::StrCat(generation.number));
        const uint64_t how = random_.Below(3);
        if (how == 0) CrashCoordinator();
        const size_t victim = random_.Below(generation.members.size());
        for (size_t a = 0; a < agents_.size(); ++a) {
          for (size_t m = 0; m < generation.members.size(); ++m) {
            if (generation.members[m].agent != agents_[a]->name()) continue;
            agents_[a]->BreakStream();
            if (m == victim && how != 1) CrashAgent(nullptr, a);
          }
        }
      });
  if (random_.Chance(500)) LaunchMore(agents_.size());
}

// The next one that hands its state over dies, or stops, in the midst of it.
void Simulation::LoseDonor(const char* kind) {
  if (!elastic()) return;
  donor_fault_ = kind;
  if (random_.Chance(500)) LaunchMore(agents_.size());
}

void Simulation::OnGive(size_t index, uint64_t process) {
  if (donor_fault_ == nullptr) return;
  const char* const kind = std::exchange(donor_fault_, nullptr);
  world_.After(random_.Between(Ms(0), Ms(100)), [this, kind, index, process] {
    if (index >= seats_.size() || seats_[index].process != process) return;
    Seat& seat = seats_[index];
    if (!seat.trainer->alive()) return;
    world_.CountFault(kind, seat.trainer->Name());
    switch (random_.Below(3)) {
      case 0:
        return KillOne(index);
      case 1:
        return CrashAgent(nullptr, seat.agent);
      default:
        seat.trainer->Stop(
            random_.Between(absl::Seconds(1), absl::Seconds(20)));
    }
  });
}

// A hostile agent, that may train in this job, says of a trainer that it holds
// the newest state. It was never there, or has another's name.
void Simulation::ForgeClaim() {
  const protocol::Generation* newest = coordinator_->Newest();
  if (newest == nullptr) return;
  const Seat& seat = seats_[forger_.Below(seats_.size())];
  SimAgent& agent = *agents_[forger_.Below(agents_.size())];
  protocol::TrainerJoined joined;
  joined.group = newest->group;
  protocol::Trainer& trainer = joined.trainer;
  trainer.rank = seat.rank;
  trainer.world_size = seat.world_size;
  trainer.last_attach_id = seat.trainer->attach_id();
  trainer.attach_id = {forger_.Chance(500) ? trainer.last_attach_id.hi : 1,
                       (uint64_t{1} << 40) + forged_.size()};
  trainer.launch = seat.launch;
  trainer.model_digest = {1, 1};
  trainer.elements = workload_->elements();
  trainer.on_shrink = on_shrink_;
  trainer.lineage = {newest->lineage.id, 1'000'000};
  trainer.resume_step = newest->base_step + 1'000'000;
  trainer.last_generation = newest->number + forger_.Below(2);
  if (forger_.Chance(500)) trainer.proof.bytes.fill(0x77);
  forged_.insert(trainer.attach_id);
  if (agent.Forge(joined)) world_.CountFault(kForgedClaim, agent.name());
}

// An agent that trains in this job lies of its own trainers' states, as soon as
// they are to attach again.
void Simulation::LieOfState() {
  const Seat& seat = seats_[liar_.Below(seats_.size())];
  const size_t a = seat.agent;
  if (!seat.trainer->HoldsState() || !agents_[a]->alive()) return;
  const bool of_parameters = liar_.Chance(500);
  const int steps = of_parameters ? 0 : liar_.Chance(700) ? 1000 : -10;
  agents_[a]->Lie(
      steps, liar_.Between(absl::Seconds(1), absl::Seconds(10)),
      [this, a, steps](const SimTrainer& trainer) {
        world_.CountFault(
            steps == 0 ? kFalseParameters : kLyingMember,
            absl::StrCat(agents_[a]->name(), " says ",
                         steps == 0 ? "other parameters"
                                    : absl::StrCat(steps, " steps more"),
                         " of ", trainer.Name()));
        liars_.insert(a);
        if (steps > 0) overstated_.insert(trainer.attach_id());
        if (steps == 0) falsified_.insert(trainer.attach_id());
      });
  if (liar_.Chance(700)) {
    world_.After(liar_.Between(Ms(0), Ms(500)),
                 [this] { LaunchMore(agents_.size()); });
  }
}

// ---- Not faults, but nothing may break by them either ----

void Simulation::Join(const char* kind) {
  if (!elastic()) return;
  world_.CountFault(kind);
  LaunchMore(agents_.size());
}

void Simulation::JoinAtMember(const char* kind) {
  if (!elastic() || killing_) return;
  const Seat& seat = seats_[random_.Below(seats_.size())];
  if (seat.agent == stranded_) return;
  world_.CountFault(kind, agents_[seat.agent]->name());
  LaunchMore(seat.agent);
}

void Simulation::ChangePin(const char* kind) {
  using protocol::Codec;
  using protocol::Mode;
  constexpr coordinator::Pin kPins[] = {{Mode::kTernary, Codec::kLevels31},
                                        {Mode::kTernary, Codec::kLevels7},
                                        {Mode::kFull, Codec::kFp32},
                                        {Mode::kCompacted, Codec::kBf16}};
  world_.CountFault(kind);
  const uint64_t which = random_.Below(5);
  coordinator_->SetPin({"job", 0},
                       which < 4 ? std::optional(kPins[which]) : std::nullopt);
}

// ---- Trainers ----

SimTrainer* Simulation::PickTrainer(const char* kind) {
  SimTrainer& trainer = *seats_[random_.Below(seats_.size())].trainer;
  if (!trainer.alive()) return nullptr;
  world_.CountFault(kind, trainer.Name());
  return &trainer;
}

void Simulation::KillTrainer(const char* kind) {
  const size_t seat = random_.Below(seats_.size());
  if (!seats_[seat].trainer->alive()) return;
  world_.CountFault(kind, seats_[seat].trainer->Name());
  KillOne(seat);
}

void Simulation::StopTrainer(const char* kind) {
  if (SimTrainer* trainer = PickTrainer(kind)) {
    trainer->Stop(random_.Between(Ms(100), absl::Seconds(20)));
  }
}

void Simulation::SlowTrainer(const char* kind) {
  if (SimTrainer* trainer = PickTrainer(kind)) {
    trainer->Pause(random_.Between(Ms(100), absl::Seconds(8)));
  }
}

void Simulation::RestTrainer(const char* kind) {
  if (SimTrainer* trainer = PickTrainer(kind)) {
    trainer->Rest(random_.Between(absl::Seconds(1), absl::Seconds(20)));
  }
}

void Simulation::ChangeMask(const char* kind) {
  if (SimTrainer* trainer = PickTrainer(kind)) {
    trainer->ChangeMask(mask_epoch_ + 1);
  }
}

void Simulation::ChangeMasks(const char* kind) {
  world_.CountFault(kind);
  ++mask_epoch_;
  for (Seat& seat : seats_) seat.trainer->ChangeMask(mask_epoch_);
}

void Simulation::WrongLayout(const char* kind) {
  if (SimTrainer* trainer = PickTrainer(kind)) trainer->UseWrongLayoutOnce();
}

void Simulation::WrongParameters(const char* kind) {
  if (SimTrainer* trainer = PickTrainer(kind)) {
    trainer->UseWrongParametersOnce();
  }
}

void Simulation::AddNoise(const char* kind) {
  if (SimTrainer* trainer = PickTrainer(kind)) trainer->AddNoiseOnce();
}

}  // namespace pactrain::sim
