#include "tests/sim/sim_agent.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/wire_convert.h"
#include "base/tls/mac.h"
#include "protocol/seat_claim.h"

namespace pactrain::sim {

using agent::TrainerId;
using protocol::CommitVote;

namespace {

// As the agent's shell makes it.
base::Secret ProofOf(const wire::Hello& hello) {
  const auto fields = agent::ParseHello(hello);
  if (!fields.ok() || fields->seat.empty()) return {};
  return base::ComputeMac(
      fields->seat, protocol::FieldsOfClaim(fields->group, fields->trainer));
}

}  // namespace

SimAgent::SimAgent(World* world, Network* network, SimCoordinator* coordinator,
                   const Options& options)
    : world_(world),
      network_(network),
      coordinator_(coordinator),
      options_(options) {}

absl::Duration SimAgent::LocalDelay() {
  return world_->random.Between(absl::Microseconds(10),
                                absl::Microseconds(500));
}

void SimAgent::Start() {
  if (alive()) return;
  ++life_;
  agent::Options options;
  options.agent = options_.name;
  options.incarnation = incarnation();
  options.site = options_.site;
  options.step_deadline = options_.step_deadline;
  options.straggler_timeout = options_.straggler_timeout;
  options.told_elements = 1;
  auto state = agent::AgentState::Create(options);
  if (!state.ok()) {
    world_->Fail(std::string(state.status().message()));
    return;
  }
  state_ = *std::move(state);
  world_->Say([&] { return "agent " + options_.name + " starts"; });
  history_ = {};
  Dial();
  Tick(life_, 0);
}

// Trainers of former processes of this agent, as the book has them.
void SimAgent::TellFormer() {
  for (auto& [process, booked] : booked_) {
    if (booked.life == life_ || booked.told == life_ ||
        booked.trainer->alive()) {
      continue;
    }
    booked.told = life_;
    Handle(agent::FormerTrainerLeft{
        {"job", 0}, booked.rank, booked.attach_id, "ended"});
  }
}

void SimAgent::CutOff(absl::Duration time) {
  cut_until_ = std::max(cut_until_, now() + time);
  BreakStream();
}

void SimAgent::Stop(absl::Duration time) {
  if (!alive() || stopped()) return;
  world_->any_stopped = true;
  last_heard_ = now();
  stopped_until_ = now() + time;
}

void SimAgent::WhenOn(std::function<void()> what) {
  world_->At(stopped_until_, [this, life = life_, what = std::move(what)] {
    if (life == life_) what();
  });
}

void SimAgent::Crash() {
  if (!alive()) return;
  stopped_until_ = lies_until_ = {};
  if (welcomed_) last_heard_ = now();
  world_->Say([&] { return "agent " + options_.name + " crashes"; });
  state_.reset();
  ++life_;
  peers_.clear();
  network_->Update(*this);
  coordinator_->Break(std::exchange(stream_, 0));
  welcomed_ = false;
  for (auto& [id, connection] : trainers_) {
    world_->After(LocalDelay(),
                  [t = connection.trainer, number = connection.number] {
                    if (number == t->connection()) t->OnClosed();
                  });
  }
  trainers_.clear();
}

void SimAgent::Tick(uint64_t life, int count) {
  if (life != life_ || !alive()) return;
  if (stopped()) return WhenOn([=, this] { Tick(life, count); });
  if (count % 10 == 0 && stream_ != 0) {
    coordinator_->Send(stream_, protocol::Heartbeat{});
  }
  TellFormer();
  Handle(agent::Tick{});
  world_->After(absl::Milliseconds(100),
                [this, life, count] { Tick(life, count + 1); });
}

void SimAgent::Handle(const agent::Event& event) {
  if (!alive()) return;
  const uint64_t life = life_;
  world_->Note(20, life, event.index());
  for (const agent::Effect& effect : state_->Handle(event, world_->now())) {
    std::visit([&](const auto& e) { Do(e); }, effect);
  }
}

// ---- Coordinator ----

void SimAgent::Dial() {
  const uint64_t life = life_;
  world_->After(
      world_->random.Between(absl::Milliseconds(20), absl::Milliseconds(200)),
      [this, life] {
        if (life != life_ || !alive() || stream_ != 0) return;
        if (now() < cut_until_ || stopped()) return Dial();
        stream_ = coordinator_->Connect(this);
        if (stream_ == 0) return Dial();
        protocol::AgentHello hello;
        hello.agent = options_.name;
        hello.incarnation = incarnation();
        hello.site = options_.site;
        hello.data_address = "127.0.0.1:1";
        hello.version = "0.1.0";
        hello.history = history_;
        coordinator_->Send(stream_, hello);
        Handle(agent::CoordinatorConnected{});
      });
}

void SimAgent::BreakStream() {
  if (welcomed_) last_heard_ = now();
  coordinator_->Break(stream_);
}

bool SimAgent::Forge(const protocol::TrainerJoined& joined) {
  if (stream_ == 0) return false;
  coordinator_->Send(
      stream_, protocol::LocalTrainers{joined.group, 0, {joined}, {}, {}});
  return true;
}

void SimAgent::Lie(int steps, absl::Duration time,
                   std::function<void(const SimTrainer&)> lied) {
  lie_ = steps;
  lies_until_ = now() + time;
  lied_ = std::move(lied);
}

void SimAgent::OnStreamMessage(uint64_t stream,
                               const protocol::CoordinatorMessage& message) {
  if (stream != stream_) return;
  if (stopped()) return WhenOn([=, this] { OnStreamMessage(stream, message); });
  if (const auto* welcome = std::get_if<protocol::Welcome>(&message)) {
    history_ = welcome->history;
    welcomed_ = true;
  } else if (const auto* mark = std::get_if<protocol::HistoryMark>(&message)) {
    history_ = *mark;
  }
  Handle(message);
}

void SimAgent::OnStreamClosed(uint64_t stream, const std::string& reason) {
  if (stream != stream_ || !alive()) return;
  if (welcomed_) {
    last_heard_ = std::max(last_heard_, now() - absl::Milliseconds(30));
  }
  LoseStream(stream, reason);
}

void SimAgent::LoseStream(uint64_t stream, const std::string& reason) {
  if (stream != stream_ || !alive()) return;
  if (stopped()) return WhenOn([=, this] { LoseStream(stream, reason); });
  stream_ = 0;
  welcomed_ = false;
  Handle(agent::CoordinatorDisconnected{reason});
  Dial();
  // The operator does as it says.
  if (reason.find("restart the agent") == reason.npos) return;
  world_->After(absl::Seconds(1), [this, life = life_] {
    if (life != life_ || coordinator_->restored()) return;
    Crash();
    Start();
  });
}

void SimAgent::Do(const agent::SendCoordinator& effect) {
  if (stream_ == 0) return;
  protocol::AgentMessage message = effect.message;
  auto* const local = std::get_if<protocol::LocalTrainers>(&message);
  if (lies() && local != nullptr && local->report) {
    Falsify(*local->report);
    for (auto& [id, connection] : trainers_) connection.trainer->Betray();
  }
  coordinator_->Send(stream_, message);
}

// ---- Peers ----

bool SimAgent::Wants(const PeerEnd& peer) const {
  auto it = peers_.find(peer.name());
  return it != peers_.end() && it->second == peer.incarnation();
}

void SimAgent::OnPeerEvent(const agent::Event& event) {
  const auto* control = std::get_if<agent::PeerControl>(&event);
  if (options_.mutant == Mutant::kTakeAbortsForVotes && control != nullptr) {
    const auto* abort = std::get_if<protocol::Abort>(&control->control.body);
    if (abort != nullptr && last_vote_ && last_vote_->step == abort->step &&
        last_vote_->attempt == abort->attempt) {
      Handle(agent::PeerControl{control->agent,
                                {control->control.group, *last_vote_}});
      return;
    }
  }
  Handle(event);
}

void SimAgent::Do(const agent::SetPeers& effect) {
  peers_.clear();
  for (const auto& peer : effect.peers) peers_[peer.agent] = peer.incarnation;
  network_->Update(*this);
}

void SimAgent::Do(const agent::SendPeerControl& effect) {
  if (const auto* vote = std::get_if<CommitVote>(&effect.control.body)) {
    const bool fresh = !last_vote_ || !(*last_vote_ == *vote);
    last_vote_ = *vote;
    if (fresh && options_.mutant == Mutant::kDeliverWithoutVotes) {
      DeliverNow(*vote);
    }
  }
  network_->Send(*this, effect.agent,
                 agent::PeerControl{options_.name, effect.control});
}

void SimAgent::Do(const agent::SendPeerData& effect) {
  agent::Payload payload = effect.payload;
  if (options_.mutant == Mutant::kLoseContribution &&
      effect.header.leg != protocol::Leg::kDown &&
      effect.header.leg != protocol::Leg::kFanOut) {
    auto zeros = std::make_shared<std::vector<uint32_t>>(payload.bytes.size());
    payload.bytes = absl::MakeConstSpan(
        reinterpret_cast<const uint8_t*>(zeros->data()), payload.bytes.size());
    payload.owner = std::move(zeros);
  }
  network_->Send(*this, effect.agent,
                 agent::PeerData{options_.name, effect.header, payload});
}

void SimAgent::Do(const agent::ClosePeer& effect) {
  world_->Fail(absl::StrCat("agent ", options_.name, " complains of agent ",
                            effect.agent, ": ", effect.reason));
}

// ---- Trainers ----

TrainerId SimAgent::Attach(SimTrainer* trainer) {
  if (!alive()) return 0;
  const TrainerId id = next_trainer_++;
  trainers_[id].trainer = trainer;
  trainers_[id].number = trainer->connection();
  FromTrainer(id, trainer->MakeHello());
  return id;
}

void SimAgent::FromTrainer(TrainerId id, const SimTrainer::ToAgent& message) {
  auto it = trainers_.find(id);
  if (it == trainers_.end()) return;
  world_->At(it->second.to_agent.Arrival(world_->now(), LocalDelay()),
             [this, id, message] { Hear(id, message); });
}

void SimAgent::Hear(TrainerId id, const SimTrainer::ToAgent& message) {
  if (stopped()) return WhenOn([=, this] { Hear(id, message); });
  auto found = trainers_.find(id);
  if (found == trainers_.end() || found->second.closed) return;
  if (const auto* hello = std::get_if<wire::Hello>(&message)) {
    OnHello(id, *hello);
  } else if (const auto* submit = std::get_if<wire::Submit>(&message)) {
    Handle(agent::TrainerMessage{id, *submit});
  } else if (const auto* vote = std::get_if<wire::Vote>(&message)) {
    Handle(agent::TrainerMessage{id, *vote});
  } else {
    Handle(agent::TrainerMessage{id, std::get<wire::Detach>(message)});
  }
}

bool SimAgent::HasOtherLaunch(const std::string& launch) const {
  return std::any_of(trainers_.begin(), trainers_.end(), [&](const auto& t) {
    return t.second.trainer->launch() != launch;
  });
}

void SimAgent::OnHello(TrainerId id, const wire::Hello& hello) {
  agent::TrainerMemory memory;
  if (auto grant = state_->CheckHello(hello); grant.ok()) {
    Connection& connection = trainers_[id];
    connection.slot = std::make_shared<Mapping>(grant->bytes);
    std::weak_ptr<Mapping>& region = regions_[grant->region];
    connection.result = region.lock();
    if (connection.result == nullptr) {
      connection.result = std::make_shared<Mapping>(grant->bytes);
      region = connection.result;
    }
    connection.trainer->SetMemory(connection.slot->memory(),
                                  connection.result->memory());
    memory.slot = connection.slot->bytes();
    memory.result = connection.result->bytes();
    const SimTrainer& trainer = *connection.trainer;
    booked_[trainer.process()] = {connection.trainer, trainer.rank(),
                                  trainer.attach_id(), life_, 0};
  }
  const wire::Hello told =
      lies() ? Falsified(*trainers_.at(id).trainer, hello) : hello;
  Handle(agent::TrainerHello{id, told, memory, ProofOf(told)});
}

wire::Hello SimAgent::Falsified(SimTrainer& trainer, wire::Hello hello) const {
  if (hello.lineage.hi == 0 && hello.lineage.lo == 0) return hello;
  const auto less = [](uint64_t value, int by) {
    return value - std::min(value, static_cast<uint64_t>(by));
  };
  if (lie_ == 0) {
    // Other parameters, maybe so that they are compared with nobody's.
    const OfParameters how = LieOf({hello.attach_id.hi, hello.attach_id.lo});
    hello.parameters.lo ^= 1;
    if (how == OfParameters::kNone) hello.parameters = {};
    if (how == OfParameters::kOtherNumber) ++hello.resume_step;
    if (how == OfParameters::kOtherCount) ++hello.committed;
  } else if (lie_ > 0) {
    hello.committed += static_cast<uint64_t>(lie_);
    hello.resume_step += static_cast<uint64_t>(lie_);
  } else {
    hello.committed = less(hello.committed, -lie_);
  }
  trainer.Betray();
  lied_(trainer);
  return hello;
}

// Of too little it says nothing here: numbers of steps would be given out
// again, which it alone has to answer for.
void SimAgent::Falsify(protocol::StepReport& report) const {
  if (lie_ < 0) return;
  report.committed_step += static_cast<uint64_t>(lie_);
  report.committed_count += static_cast<uint64_t>(lie_);
}

void SimAgent::TrainerDied(TrainerId id) {
  world_->After(10 * LocalDelay(), [this, id] {
    auto it = trainers_.find(id);
    if (it == trainers_.end()) return;
    if (stopped()) return WhenOn([=, this] { TrainerDied(id); });
    const bool told = it->second.closed;
    if (!told) Handle(agent::TrainerGone{id, "was killed by signal 9"});
    trainers_.erase(id);
  });
}

void SimAgent::Do(const agent::SendTrainer& effect) {
  auto it = trainers_.find(effect.trainer);
  if (it == trainers_.end()) return;
  Connection& connection = it->second;
  if (const auto* m = std::get_if<wire::Attached>(&effect.message)) {
    connection.decision = m->decision;
    connection.world_size = m->world_size;
  } else if (const auto* c = std::get_if<wire::Committed>(&effect.message)) {
    connection.decision = c->next;
  }
  const uint64_t life = life_;
  world_->At(connection.to_trainer.Arrival(world_->now(), LocalDelay()),
             [this, life, id = effect.trainer, trainer = connection.trainer,
              number = connection.number, message = effect.message] {
               if (life == life_ && trainers_.count(id) > 0 &&
                   number == trainer->connection()) {
                 trainer->OnMessage(message);
               }
             });
}

void SimAgent::Do(const agent::CloseTrainer& effect) {
  auto it = trainers_.find(effect.trainer);
  if (it == trainers_.end()) return;
  it->second.closed = true;
  world_->At(it->second.to_trainer.Arrival(world_->now(), LocalDelay()),
             [this, id = effect.trainer] {
               auto found = trainers_.find(id);
               if (found == trainers_.end()) return;
               SimTrainer* const trainer = found->second.trainer;
               const int number = found->second.number;
               trainers_.erase(found);
               if (number == trainer->connection()) trainer->OnClosed();
             });
}

void SimAgent::DeliverNow(const CommitVote& vote) {
  for (auto& [id, connection] : trainers_) {
    if (connection.world_size == 0 || connection.closed) continue;
    auto committed =
        agent::MakeMessage<wire::Committed>(wire::Kind::kCommitted);
    committed.step = vote.step;
    committed.attempt = vote.attempt;
    committed.world_size = connection.world_size;
    committed.next = connection.decision;
    Do(agent::SendTrainer{id, committed});
  }
}

void SimAgent::Do(const agent::LogLine& effect) {
  world_->Say([&] { return options_.name + ": " + effect.text; });
}

}  // namespace pactrain::sim
