// One run of the simulator: a world made from a seed, the launches that train
// in it, and the faults that befall them (simulation_faults.cc).
//
// Thread-compatible.
#ifndef PACTRAIN_TESTS_SIM_SIMULATION_H_
#define PACTRAIN_TESTS_SIM_SIMULATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/sim/network.h"
#include "tests/sim/oracle.h"
#include "tests/sim/sim_agent.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/sim_trainer.h"
#include "tests/sim/simulator.h"
#include "tests/sim/workload.h"
#include "tests/sim/world.h"

namespace pactrain::sim {

// Later there are none.
inline constexpr absl::Duration kFaultsEnd = absl::Seconds(3);

inline absl::Duration Ms(int64_t ms) { return absl::Milliseconds(ms); }

class Simulation {
 public:
  explicit Simulation(const RunOptions& options);
  RunResult Run();

 private:
  // The place of one training process after the other.
  struct Seat {
    std::string launch;
    uint32_t rank = 0;
    uint32_t world_size = 0;  // Of its launch.
    size_t agent = 0;
    int leaves = 0;  // After so many steps, if not 0.
    uint64_t resume_step = 0;
    std::unique_ptr<SimTrainer> trainer;
    uint64_t process = 0;
    agent::TrainerId id = 0;
    bool done = false;  // Or it stays empty.
  };

  void MakeAgents(const RunOptions& options);
  void AddAgent(const std::string& name, size_t site,
                const RunOptions& options);
  bool elastic() const { return on_shrink_ != protocol::OnShrink::kAbort; }
  void Launch();
  void StartProcess(size_t seat);
  void AttachWhenPossible(size_t seat, uint64_t process);
  void OnTrainerEnd(size_t seat, uint64_t process, SimTrainer::End end);
  void CheckFinished();
  void KillLaunch(absl::Duration relaunch_after);
  void Kill(Seat& seat);
  void KillOne(size_t seat);
  // A launch with a trainer at the stranded agent.
  bool IsStranded(const std::string& launch) const;
  void GiveUp(const std::string& launch);
  void LaunchMore();

  void PlanFaults();
  void Fault();
  void ChangePin();
  void FaultOfAgent(size_t a);
  void FaultOfTrainer(SimTrainer& trainer);

  World world_;
  Random& random_;
  const Mutant mutant_;
  std::vector<size_t> agent_of_rank_;
  std::unique_ptr<Workload> workload_;
  std::unique_ptr<Oracle> oracle_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<SimCoordinator> coordinator_;
  std::vector<std::unique_ptr<SimAgent>> agents_;
  // One that the others cannot reach, only for launches that join; none, if it
  // is no index.
  size_t stranded_ = ~size_t{0};
  absl::Duration step_deadline_ = absl::Seconds(6);
  bool gse_ = true;
  int steps_ = 0;

  protocol::OnShrink on_shrink_ = protocol::OnShrink::kAbort;
  uint64_t launch_ = 0;
  uint64_t more_ = 0;  // Launches that joined.
  uint64_t processes_ = 0;
  bool killing_ = false;
  std::vector<Seat> seats_;
  std::vector<std::unique_ptr<SimTrainer>> old_trainers_;
  int mask_epoch_ = 0;
  bool finished_ = false;
};

}  // namespace pactrain::sim

#endif  // PACTRAIN_TESTS_SIM_SIMULATION_H_
