#include "tests/sim/simulator.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace pactrain::sim {
namespace {

// From the last fault to the end of the job: a cut, trainers that rest or are
// stopped, two one after the other, an old launch's deadlines, the
// coordinator's patience with lost agents, and a launch of its own.
constexpr absl::Duration kPatience = absl::Seconds(240);
// A run has about a hundredth of them.
constexpr uint64_t kMostEvents = 2'000'000;

// Who is refused for a claim is told so, too, while the others may live.
bool TellsToReplace(const std::string& error) {
  return absl::StrContains(error, "PACTRAIN_REPLACE=1") &&
         !absl::StrContains(error, "Nothing of it was taken");
}

}  // namespace

Simulation::Simulation(const RunOptions& options)
    : world_(options.seed, options.tell),
      random_(world_.random),
      forger_(Hash({options.seed, 35})),
      liar_(Hash({options.seed, 31})),
      mutant_(options.mutant) {
  MakeAgents(options);
  workload_ = std::make_unique<Workload>(
      Hash({options.seed}), static_cast<uint32_t>(agent_of_rank_.size()));
  oracle_ = std::make_unique<Oracle>(&world_, workload_.get());
  gse_ = random_.Chance(700);
  mixed_ = random_.Chance(200);
  steps_ = 8 + static_cast<int>(random_.Below(25));
  on_shrink_ = static_cast<protocol::OnShrink>(random_.Below(3));
  coordinator_->Watch(
      {[this](const protocol::Generation& g) { OnFormed(g); },
       [this](const protocol::JoinRefused& r) { OnRefused(r); }});
}

void Simulation::MakeAgents(const RunOptions& options) {
  if (random_.Chance(400)) {  // A long job: it trains on during long faults.
    pace_ = Ms(1500);
    faults_end_ = absl::Seconds(20);
  }
  coordinator::Options settings;
  settings.codec =
      random_.Chance(500) ? protocol::Codec::kFp32 : protocol::Codec::kBf16;
  settings.epoch_steps = 3;
  settings.regroup_timeout = regroup_timeout_ =
      absl::Seconds(1 + random_.Below(10));
  settings.risk_bound = 1;
  settings.min_exchange_share = random_.Chance(300) ? 0 : 1;
  const size_t sites = 1 + random_.Below(3);
  if (sites == 3 && random_.Chance(500)) {  // A chain; else rotating roots.
    settings.links = {{"site-0", "site-1"}, {"site-1", "site-2"}};
  }
  coordinator_ =
      std::make_unique<SimCoordinator>(&world_, settings, options.mutant);
  Network::Options net;
  net.duplicate_permille = random_.Chance(500) ? 50 : 0;
  net.slow_permille = random_.Chance(500) ? 30 : 0;
  network_ = std::make_unique<Network>(&world_, net);
  for (size_t s = 0; s < sites; ++s) {
    const size_t in_site = 1 + random_.Below(sites > 2 ? 2 : 3);
    for (size_t a = 0; a < in_site; ++a) {
      AddAgent(absl::StrCat("agent-", s, "-", a), s, options);
      const size_t trainers = 1 + random_.Below(2);
      agent_of_rank_.insert(agent_of_rank_.end(), trainers, agents_.size() - 1);
    }
  }
  if (random_.Chance(400)) {
    spare_ = agents_.size();
    AddAgent("agent-spare", 0, options);
  }
  if (!random_.Chance(200)) return;
  AddAgent("agent-stranded", 0, options);
  network_->Strand("agent-stranded");
  stranded_ = agents_.size() - 1;
}

void Simulation::AddAgent(const std::string& name, size_t site,
                          const RunOptions& options) {
  SimAgent::Options agent;
  agent.name = name;
  agent.site = absl::StrCat("site-", site);
  agent.step_deadline = step_deadline_;
  agent.straggler_timeout = pace_ + random_.Between(Ms(400), absl::Seconds(15));
  agent.mutant = options.mutant;
  agents_.push_back(std::make_unique<SimAgent>(&world_, network_.get(),
                                               coordinator_.get(), agent));
  network_->Add(agents_.back().get());
}

RunResult Simulation::Run() {
  world_.After(random_.Between(Ms(0), Ms(300)),
               [this] { coordinator_->Start(); });
  for (auto& agent : agents_) {
    world_.After(random_.Between(Ms(0), Ms(300)), [&] { agent->Start(); });
  }
  Launch();
  PlanFaults();
  if (elastic()) {
    world_.After(faults_end_ + absl::Seconds(10),
                 [this] { LookForLostState(); });
  }
  for (uint64_t events = 0;
       world_.failure().empty() && !finished_ &&
       world_.now() < faults_end_ + kPatience && world_.RunNext();
       ++events) {
    if (events == kMostEvents)
      world_.Fail("messages answer each other forever");
  }
  if (world_.failure().empty() && !finished_) {
    std::string text = "the job has not finished";
    for (const Seat& seat : seats_) {
      if (seat.trainer) {
        absl::StrAppend(&text, "; ", seat.trainer->Progress(), " ",
                        seat.trainer->waiting());
      }
    }
    world_.Fail(text);
  }
  for (const Kind& kind : Kinds()) world_.faults.try_emplace(kind.name, 0);
  return {world_.failure(), world_.trace(), oracle_->deliveries(),
          oracle_->commits(), world_.faults};
}

// ---- The job: its launcher starts all ranks anew when one fails ----

void Simulation::Launch() {
  ++launch_;
  killing_ = false;
  for (Seat& seat : seats_) {
    if (seat.trainer) old_trainers_.push_back(std::move(seat.trainer));
  }
  seats_.clear();
  seats_.resize(agent_of_rank_.size());
  // From a checkpoint of the newest committed step, an older one, or none.
  const uint64_t newest = oracle_->newest_committed();
  const uint64_t resume =
      random_.Chance(500) ? newest : random_.Below(newest + 1);
  // A lost agent's ranks may live for all that the coordinator knows. Whoever
  // starts them here knows that all are dead, and does what the text says.
  const bool replace = std::exchange(told_to_replace_, false);
  for (size_t rank = 0; rank < seats_.size(); ++rank) {
    Seat& seat = seats_[rank];
    seat.launch = absl::StrCat("launch-", launch_);
    seat.rank = static_cast<uint32_t>(rank);
    seat.world_size = static_cast<uint32_t>(seats_.size());
    seat.agent = agent_of_rank_[rank];
    seat.resume_step = resume;
    seat.replace = replace;
    StartProcess(rank);
  }
}

void Simulation::StartProcess(size_t index) {
  Seat& seat = seats_[index];
  if (seat.trainer) old_trainers_.push_back(std::move(seat.trainer));
  const uint64_t process = seat.process = ++processes_;
  SimTrainer::Options options;
  options.process = process;
  options.launch = seat.launch;
  options.rank = seat.rank;
  options.world_size = seat.world_size;
  options.on_shrink = on_shrink_;
  options.steps = steps_;
  options.leaves = seat.leaves;
  options.mask_epoch = mask_epoch_;
  options.gse = gse_;
  options.resume_step = seat.resume_step;
  options.replace = seat.replace;
  options.step_deadline = step_deadline_;
  options.pace = pace_;
  options.gives = [this, index, process] { OnGive(index, process); };
  options.kind = mixed_ && seat.rank % 2 == 1 ? PT_CPP : PT_PYTHON;
  options.mutant = mutant_;
  const auto is_mine = [this, index, process] {
    return index < seats_.size() && seats_[index].process == process;
  };
  seat.trainer = std::make_unique<SimTrainer>(
      &world_, workload_.get(), oracle_.get(), options,
      [this, index, is_mine](const SimTrainer::ToAgent& message) {
        if (!is_mine()) return;
        agents_[seats_[index].agent]->FromTrainer(seats_[index].id, message);
      },
      [this, index, process, is_mine](SimTrainer::End end) {
        if (is_mine()) OnTrainerEnd(index, process, end);
      });
  world_.After(random_.Between(Ms(0), Ms(400)),
               [this, index, process] { AttachWhenPossible(index, process); });
}

void Simulation::AttachWhenPossible(size_t index, uint64_t process) {
  if (index >= seats_.size() || seats_[index].process != process || killing_) {
    return;
  }
  Seat& seat = seats_[index];
  if (!seat.trainer->alive()) return;
  if (!seat.trainer->stopped()) {
    seat.id = agents_[seat.agent]->Attach(seat.trainer.get());
    if (seat.id != 0) return;
  }
  world_.After(Ms(100),
               [this, index, process] { AttachWhenPossible(index, process); });
}

void Simulation::OnTrainerEnd(size_t index, uint64_t process,
                              SimTrainer::End end) {
  switch (end) {
    case SimTrainer::End::kRejoin:
      world_.After(random_.Between(Ms(1), Ms(50)),
                   [this, index, process, old = seats_[index].id] {
                     AttachWhenPossible(index, process);
                     // The old connection is closed when the new one is there,
                     // or not.
                     world_.After(random_.Between(Ms(0), Ms(3000)),
                                  [this, agent = seats_[index].agent, old] {
                                    agents_[agent]->TrainerDied(old);
                                  });
                   });
      return;
    case SimTrainer::End::kFailed:
      agents_[seats_[index].agent]->TrainerDied(seats_[index].id);
      // Kept out, as it should be.
      if (IsStranded(seats_[index].launch)) return GiveUp(seats_[index].launch);
      told_to_replace_ |= TellsToReplace(seats_[index].trainer->error_text());
      return KillLaunch(random_.Between(Ms(100), Ms(600)));
    case SimTrainer::End::kDone:
      seats_[index].done = true;
      CheckFinished();
  }
}

void Simulation::CheckFinished() {
  finished_ = std::all_of(seats_.begin(), seats_.end(),
                          [](const Seat& seat) { return seat.done; });
}

void Simulation::Kill(Seat& seat) {
  if (!seat.trainer->alive()) return;
  seat.trainer->Kill();
  if (seat.id != 0) agents_[seat.agent]->TrainerDied(seat.id);
}

void Simulation::KillLaunch(absl::Duration relaunch_after) {
  if (std::exchange(killing_, true)) return;
  world_.After(random_.Between(Ms(1), Ms(200)), [this, relaunch_after] {
    for (Seat& seat : seats_) Kill(seat);
    world_.After(relaunch_after, [this] { Launch(); });
  });
}

bool Simulation::IsStranded(const std::string& launch) const {
  return std::any_of(seats_.begin(), seats_.end(), [&](const Seat& seat) {
    return seat.launch == launch && seat.agent == stranded_;
  });
}

// Nobody starts it again.
void Simulation::GiveUp(const std::string& launch) {
  for (Seat& seat : seats_) {
    if (seat.launch != launch) continue;
    Kill(seat);
    seat.done = true;
  }
  CheckFinished();
}

// Its site starts another one in its place, or leaves the place empty.
void Simulation::KillOne(size_t index) {
  Kill(seats_[index]);
  if (IsStranded(seats_[index].launch)) return GiveUp(seats_[index].launch);
  if (!elastic()) return KillLaunch(random_.Between(Ms(100), Ms(600)));
  const bool others = std::any_of(seats_.begin(), seats_.end(), [](Seat& s) {
    return s.trainer->alive() && s.leaves == 0;
  });
  if (on_shrink_ == protocol::OnShrink::kContinue && others &&
      random_.Chance(500)) {
    seats_[index].done = true;
    return;
  }
  world_.After(random_.Between(Ms(100), Ms(600)),
               [this, index, process = seats_[index].process] {
                 if (index < seats_.size() &&
                     seats_[index].process == process && !killing_) {
                   StartProcess(index);
                 }
               });
}

// Trainers of a launch of their own, which may leave before the others end.
void Simulation::LaunchMore(size_t agent) {
  if (killing_) return;
  const size_t reachable = std::min(stranded_, agents_.size());
  const bool anywhere = agent >= reachable;
  const bool stranded = anywhere && random_.Below(agents_.size()) == stranded_;
  if (stranded) {
    // Where it is alone its ranks never meet, and give up at last.
    world_.After(
        absl::Seconds(20),
        [this, launch = absl::StrCat("more-", more_ + 1)] { GiveUp(launch); });
  }
  const auto trainers = static_cast<uint32_t>(1 + random_.Below(2));
  const int leaves = random_.Chance(500) ? 1 + random_.Below(6) : 0;
  const std::string launch = absl::StrCat("more-", ++more_);
  for (uint32_t rank = 0; rank < trainers; ++rank) {
    Seat seat;
    seat.launch = launch;
    seat.rank = rank;
    seat.world_size = trainers;
    seat.agent = stranded && rank == 0 ? stranded_
                 : anywhere            ? random_.Below(reachable)
                                       : agent;
    seat.leaves = leaves;
    seats_.push_back(std::move(seat));
    StartProcess(seats_.size() - 1);
  }
}

RunResult RunSeed(const RunOptions& options) {
  return Simulation(options).Run();
}

}  // namespace pactrain::sim
