#include "tests/sim/sim_coordinator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/driver/seat_proofs.h"

namespace pactrain::sim {

using coordinator::CoordinatorState;

namespace {

// Of every copy of the journal.
base::Secret Secret() {
  base::Secret secret;
  secret.bytes.fill(0x5e);
  return secret;
}

}  // namespace

SimCoordinator::SimCoordinator(World* world,
                               const coordinator::Options& options,
                               Mutant mutant)
    : world_(world), options_(options), mutant_(mutant) {}

absl::Duration SimCoordinator::Delay() {
  return world_->random.Between(absl::Milliseconds(1), absl::Milliseconds(30));
}

void SimCoordinator::Start() {
  if (state_) return;  // Somebody else was faster.
  ++directory_.term;
  ++life_;
  directory_.history =
      coordinator::History(directory_.history.writers(), {life_, 43});
  auto state = CoordinatorState::Create(
      options_, {std::string(32, 'c'), directory_.term, directory_.history},
      directory_.journal, world_->now());
  if (!state.ok()) {
    world_->Fail(absl::StrCat("coordinator: ", state.status().message()));
    return;
  }
  state_ = *std::move(state);
  known_.clear();
  if (const auto* newest = Newest()) known_.insert(newest->number);
  state_->SetReadOnly(disk_full_);
  world_->Say([&] {
    return absl::StrCat("coordinator starts, term ", directory_.term);
  });
  Tick(life_);
}

void SimCoordinator::WhenOn(std::function<void()> what) {
  world_->At(stopped_until_, [this, life = life_, what = std::move(what)] {
    if (life == life_) what();
  });
}

void SimCoordinator::Stop(absl::Duration time) {
  // What waits is heard in order, so it waits for one end alone.
  if (stopped()) return;
  world_->any_stopped = true;
  stopped_until_ = world_->now() + time;
}

bool SimCoordinator::Restore(absl::Duration down, absl::Duration time) {
  if (!copy_ || restored_ || !state_) return false;
  // Not an old one.
  if (copy_->history.mark() == directory_.history.mark()) return false;
  restored_ = true;
  Crash();
  world_->After(down, [this, time] {
    if (state_) Crash();
    Directory right = std::exchange(directory_, *copy_);
    world_->Say([] { return "coordinator: an old copy is in place"; });
    Start();
    world_->After(time, [this, right = std::move(right)] {
      if (state_) Crash();
      directory_ = right;
      restored_ = false;
      world_->Say([] { return "coordinator: the right copy is back"; });
      Start();
    });
  });
  return true;
}

const protocol::Generation* SimCoordinator::Newest() const {
  const auto& groups = directory_.journal.groups;
  return groups.empty() ? nullptr : &groups.begin()->second.generation;
}

void SimCoordinator::Crash() {
  state_.reset();
  stopped_until_ = {};
  ++life_;
  if (mutant_ == Mutant::kForgetJournal) directory_.journal = {};
  while (!streams_.empty()) {
    CloseClientEnd(streams_.begin()->first, "the coordinator died");
  }
  world_->Say([] { return "coordinator crashes"; });
}

void SimCoordinator::FillDisk(absl::Duration time) {
  disk_full_ = true;
  if (state_) state_->SetReadOnly(true);
  world_->After(time, [this] {
    disk_full_ = false;
    if (state_) state_->SetReadOnly(false);
  });
}

void SimCoordinator::SetPin(const protocol::GroupId& group,
                            const std::optional<coordinator::Pin>& pin) {
  if (!state_) return;
  auto effects = state_->SetPin(group, pin, world_->now());
  if (effects.ok()) Carry(*std::move(effects));
}

void SimCoordinator::Forget(const std::string& job) {
  if (!state_ || stopped()) return;
  auto effects = state_->Forget(job, "an operator", world_->now());
  if (!effects.ok()) return;
  world_->Say([&] { return "operator: forgets " + job; });
  Carry(*std::move(effects));
}

void SimCoordinator::Expel(const std::string& agent) {
  if (!state_ || stopped() || disk_full_) return;
  world_->Say([&] { return "operator: evicts " + agent; });
  Carry(state_->Expel(agent, std::nullopt, "evicted", world_->now()));
}

void SimCoordinator::Tick(uint64_t life) {
  if (life != life_ || !state_) return;
  if (stopped()) return WhenOn([=, this] { Tick(life); });
  Carry(state_->Tick(world_->now()));
  world_->After(absl::Milliseconds(100), [this, life] { Tick(life); });
}

uint64_t SimCoordinator::Connect(StreamClient* client) {
  if (!state_) return 0;
  const uint64_t stream = next_stream_++;
  streams_[stream].client = client;
  return stream;
}

void SimCoordinator::Send(uint64_t stream, protocol::AgentMessage message) {
  auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  // A newer one makes it old: it is heard once more, late.
  if (std::holds_alternative<protocol::LocalTrainers>(message) &&
      world_->random.Chance(100)) {
    world_->After(100 * Delay(),
                  [this, stream, message] { Hear(stream, message); });
  }
  world_->At(
      it->second.to_coordinator.Arrival(world_->now(), Delay()),
      [this, stream, message = std::move(message)] { Hear(stream, message); });
}

void SimCoordinator::Hear(uint64_t stream,
                          const protocol::AgentMessage& message) {
  if (!state_ || streams_.count(stream) == 0) return;
  if (stopped()) return WhenOn([=, this] { Hear(stream, message); });
  world_->Note(10, stream, message.index());
  Carry(state_->OnMessage(stream, coordinator::WithProofs(Secret(), message),
                          world_->now()));
}

void SimCoordinator::Break(uint64_t stream) {
  if (streams_.count(stream) == 0) return;
  CloseClientEnd(stream, "the connection broke");
  world_->After(Delay() * 10,
                [this, stream, life = life_] { HearBroken(stream, life); });
}

void SimCoordinator::HearBroken(uint64_t stream, uint64_t life) {
  if (!state_ || life != life_) return;
  if (stopped()) return WhenOn([=, this] { HearBroken(stream, life); });
  Carry(state_->OnStreamClosed(stream, "the connection broke", world_->now()));
}

void SimCoordinator::CloseClientEnd(uint64_t stream,
                                    const std::string& reason) {
  auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  StreamClient* const client = it->second.client;
  streams_.erase(it);
  world_->After(Delay(), [=] { client->OnStreamClosed(stream, reason); });
}

// Who lets the process die between its journal and its word.
bool SimCoordinator::IsLost(const coordinator::Effects& effects) {
  if (!lose_) return false;
  for (const auto& record : effects.records) {
    const auto* formed = std::get_if<coordinator::GenerationFormed>(&record);
    if (formed == nullptr || !formed->generation.donor) continue;
    world_->After(absl::ZeroDuration(),
                  [then = std::exchange(lose_, nullptr),
                   generation = formed->generation] { then(generation); });
    return true;
  }
  return false;
}

// Log before tell; a crash may come between.
void SimCoordinator::Carry(coordinator::Effects effects) {
  if (disk_full_ && !effects.records.empty()) {
    world_->Fail("the coordinator wants to log while it is read-only");
  }
  for (const auto& record : effects.records) directory_.journal.Apply(record);
  if (!effects.records.empty()) directory_.history.Wrote();
  if (!effects.records.empty() && !restored_ && world_->random.Chance(100)) {
    copy_ = directory_;
  }
  for (const auto& event : effects.events) {
    world_->Say([&] { return "coordinator: " + event.text; });
  }
  for (const auto& record : effects.records) {
    const auto* formed = std::get_if<coordinator::GenerationFormed>(&record);
    if (formed == nullptr) continue;
    if (watcher_.formed) watcher_.formed(formed->generation);
    known_.insert(formed->generation.number);
  }
  if (IsLost(effects)) return;
  for (auto& send : effects.sends) {
    const auto* refused = std::get_if<protocol::JoinRefused>(&send.message);
    if (refused != nullptr && watcher_.refused) watcher_.refused(*refused);
    auto it = streams_.find(send.stream);
    if (it == streams_.end()) continue;
    auto* start = std::get_if<protocol::StartGeneration>(&send.message);
    if (start != nullptr) {
      coordinator::TellSeats(Secret(), it->second.client->name(), *start);
    }
    world_->At(it->second.to_agent.Arrival(world_->now(), Delay()),
               [this, stream = send.stream, message = std::move(send.message)] {
                 auto found = streams_.find(stream);
                 if (found == streams_.end()) return;
                 world_->Note(11, stream, message.index());
                 found->second.client->OnStreamMessage(stream, message);
               });
  }
  for (const auto& close : effects.closes) {
    CloseClientEnd(close.stream, std::string(close.status.message()));
  }
}

}  // namespace pactrain::sim
