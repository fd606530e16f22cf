#include "tests/sim/sim_coordinator.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace pactrain::sim {

using coordinator::CoordinatorState;

SimCoordinator::SimCoordinator(World* world,
                               const coordinator::Options& options,
                               Mutant mutant)
    : world_(world), options_(options), mutant_(mutant) {}

absl::Duration SimCoordinator::Delay() {
  return world_->random.Between(absl::Milliseconds(1), absl::Milliseconds(30));
}

void SimCoordinator::Start() {
  ++term_;
  ++life_;
  auto state = CoordinatorState::Create(options_, {std::string(32, 'c'), term_},
                                        journal_, world_->now());
  if (!state.ok()) {
    world_->Fail(absl::StrCat("coordinator: ", state.status().message()));
    return;
  }
  state_ = *std::move(state);
  state_->SetReadOnly(disk_full_);
  world_->Say([&] { return absl::StrCat("coordinator starts, term ", term_); });
  Tick(life_);
}

void SimCoordinator::Crash() {
  state_.reset();
  ++life_;
  if (mutant_ == Mutant::kForgetJournal) journal_ = {};
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

void SimCoordinator::Tick(uint64_t life) {
  if (life != life_ || !state_) return;
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
  world_->At(it->second.to_coordinator.Arrival(world_->now(), Delay()),
             [this, stream, message = std::move(message)] {
               if (!state_ || streams_.count(stream) == 0) return;
               world_->Note(10, stream, message.index());
               Carry(state_->OnMessage(stream, message, world_->now()));
             });
}

void SimCoordinator::Break(uint64_t stream) {
  if (streams_.count(stream) == 0) return;
  CloseClientEnd(stream, "the connection broke");
  const uint64_t life = life_;
  world_->After(Delay() * 10, [this, stream, life] {
    if (!state_ || life != life_) return;
    Carry(
        state_->OnStreamClosed(stream, "the connection broke", world_->now()));
  });
}

void SimCoordinator::CloseClientEnd(uint64_t stream,
                                    const std::string& reason) {
  auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  StreamClient* const client = it->second.client;
  streams_.erase(it);
  world_->After(Delay(), [=] { client->OnStreamClosed(stream, reason); });
}

// Log before tell; a crash may come between.
void SimCoordinator::Carry(coordinator::Effects effects) {
  if (disk_full_ && !effects.records.empty()) {
    world_->Fail("the coordinator wants to log while it is read-only");
  }
  for (const auto& record : effects.records) journal_.Apply(record);
  for (const auto& event : effects.events) {
    world_->Say([&] { return "coordinator: " + event.text; });
  }
  for (auto& send : effects.sends) {
    auto it = streams_.find(send.stream);
    if (it == streams_.end()) continue;
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
