#include "tests/sim/simulation.h"

namespace pactrain::sim {

void Simulation::PlanFaults() {
  const uint64_t count = random_.Below(random_.Chance(200) ? 20 : 5);
  for (uint64_t i = 0; i < count; ++i) {
    world_.After(random_.Between(Ms(300), kFaultsEnd), [this] { Fault(); });
  }
}

void Simulation::Fault() {
  const size_t a = random_.Below(agents_.size());
  const size_t b = random_.Below(agents_.size());
  switch (random_.Below(10)) {
    case 8:
      return ChangePin();
    case 9:
      if (!elastic()) return;
      world_.CountFault("launch joins");
      return LaunchMore();
    case 0:
    case 1: {
      if (a == b) return;
      const bool damaged = random_.Chance(200);
      world_.CountFault(damaged ? "damage" : "break");
      network_->Break(a, b, random_.Between(Ms(0), Ms(100)), damaged);
      return;
    }
    case 2:
      if (a == b) return;
      world_.CountFault("partition");
      network_->Break(a, b, random_.Between(Ms(100), absl::Seconds(3)), false);
      return;
    case 3:
      return FaultOfAgent(a);
    case 4:
      if (!coordinator_->alive()) return;
      world_.CountFault("coordinator crash");
      coordinator_->Crash();
      world_.After(random_.Between(Ms(50), absl::Seconds(4)),
                   [this] { coordinator_->Start(); });
      return;
    case 5:
      world_.CountFault("disk full");
      coordinator_->FillDisk(random_.Between(Ms(100), absl::Seconds(3)));
      return;
    default: {
      const size_t seat = random_.Below(seats_.size());
      SimTrainer& trainer = *seats_[seat].trainer;
      if (!trainer.alive()) return;
      if (!random_.Chance(elastic() ? 400 : 150)) {
        return FaultOfTrainer(trainer);
      }
      world_.CountFault("trainer crash");
      KillOne(seat);
    }
  }
}

// No fault, but nothing may break by it either.
void Simulation::ChangePin() {
  using protocol::Codec;
  using protocol::Mode;
  constexpr coordinator::Pin kPins[] = {{Mode::kTernary, Codec::kLevels31},
                                        {Mode::kTernary, Codec::kLevels7},
                                        {Mode::kFull, Codec::kFp32},
                                        {Mode::kCompacted, Codec::kBf16}};
  world_.CountFault("pin");
  const uint64_t which = random_.Below(5);
  coordinator_->SetPin({"job", 0},
                       which < 4 ? std::optional(kPins[which]) : std::nullopt);
}

void Simulation::FaultOfAgent(size_t a) {
  if (random_.Chance(500)) {
    world_.CountFault("stream break");
    agents_[a]->BreakStream();
    return;
  }
  if (!agents_[a]->alive()) return;
  world_.CountFault("agent crash");
  agents_[a]->Crash();
  world_.After(random_.Between(Ms(50), absl::Seconds(2)),
               [this, a] { agents_[a]->Start(); });
}

void Simulation::FaultOfTrainer(SimTrainer& trainer) {
  switch (random_.Below(7)) {
    case 6:
      world_.CountFault("resting trainer");
      trainer.Rest(random_.Between(absl::Seconds(1), absl::Seconds(20)));
      break;
    case 0:
      world_.CountFault("slow trainer");
      trainer.Pause(random_.Between(Ms(100), absl::Seconds(8)));
      break;
    case 1:
      world_.CountFault("mask change of one");
      trainer.ChangeMask(mask_epoch_ + 1);
      break;
    case 2:
      world_.CountFault("mask change of all");
      ++mask_epoch_;
      for (Seat& seat : seats_) seat.trainer->ChangeMask(mask_epoch_);
      break;
    case 3:
      world_.CountFault("wrong layout");
      trainer.UseWrongLayoutOnce();
      break;
    case 4:
      world_.CountFault("wrong parameters");
      trainer.UseWrongParametersOnce();
      break;
    default:
      world_.CountFault("element outside the mask");
      trainer.AddNoiseOnce();
  }
}

}  // namespace pactrain::sim
