// One run of the simulator: a world made from a seed, the launches that train
// in it, and the faults that befall them (simulation_faults.cc).
//
// Thread-compatible.
#ifndef PACTRAIN_TESTS_SIM_SIMULATION_H_
#define PACTRAIN_TESTS_SIM_SIMULATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
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
    bool replace = false;
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
  // At `agent`, or, if that is none, at any.
  void LaunchMore(size_t agent);

  // simulation_faults.cc; a kind may find nothing to befall, and is not counted
  // then.
  struct Kind {
    const char* name;
    void (Simulation::*run)(const char* name);
  };
  static const std::vector<Kind>& Kinds();
  void PlanFaults();
  void Break(const char* kind, absl::Duration shortest, absl::Duration longest,
             bool damaged);
  void BreakConnection(const char* kind);
  void DamageFrame(const char* kind);
  void Part(const char* kind);
  void KillAgent(const char* kind);
  void CrashAgent(const char* kind, size_t a);  // Null: it is not counted.
  void BreakStream(const char* kind);
  absl::Duration CutTime();
  void CutOne(const char* kind);
  void CutMembers(const char* kind);
  void StopAgent(const char* kind);
  void KillCoordinator(const char* kind);
  void CrashCoordinator();
  void StopCoordinator(const char* kind);
  void FillDisk(const char* kind);
  void RestoreDirectory(const char* kind);
  void LoseGeneration(const char* kind);
  void LoseDonor(const char* kind);
  void OnGive(size_t index, uint64_t process);
  void ForgeClaim();
  void LieOfState();
  void Join(const char* kind);
  void JoinAtMember(const char* kind);
  void ChangePin(const char* kind);
  SimTrainer* PickTrainer(const char* kind);
  void KillTrainer(const char* kind);
  void StopTrainer(const char* kind);
  void SlowTrainer(const char* kind);
  void RestTrainer(const char* kind);
  void ChangeMask(const char* kind);
  void ChangeMasks(const char* kind);
  void WrongLayout(const char* kind);
  void WrongParameters(const char* kind);
  void AddNoise(const char* kind);

  // simulation_state.cc
  void LookForLostState();
  void PutLiarsOut();
  bool HasEqualBeside(const SimTrainer& liar,
                      const protocol::Generation& generation);
  bool IsContradicted(const SimTrainer& liar,
                      const protocol::Generation& generation);
  SimTrainer* FindTrainer(const protocol::Digest& attach_id);
  bool WasLeftBehind(const SimTrainer& holder) const;
  void OnFormed(const protocol::Generation& generation);
  void OnRefused(const protocol::JoinRefused& refusal);

  World world_;
  Random& random_;
  Random forger_;
  Random liar_;
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
  // One that no trainer of the first launches is at; else as above.
  size_t spare_ = ~size_t{0};
  absl::Duration step_deadline_ = absl::Seconds(6);
  absl::Duration pace_ = Ms(120);
  absl::Duration faults_end_ = absl::Seconds(3);  // Later there are none.
  absl::Duration regroup_timeout_;
  const char* donor_fault_ = nullptr;  // Of the next hand-over.
  bool gse_ = true;
  int steps_ = 0;
  bool mixed_ = false;  // Python and C++ ranks.

  protocol::OnShrink on_shrink_ = protocol::OnShrink::kAbort;
  uint64_t launch_ = 0;
  uint64_t more_ = 0;  // Launches that joined.
  uint64_t processes_ = 0;
  bool killing_ = false;
  bool told_to_replace_ = false;  // By why the last launch could not attach.
  std::vector<Seat> seats_;
  std::vector<std::unique_ptr<SimTrainer>> old_trainers_;
  std::set<protocol::Digest> forged_;      // Attaches that never were.
  std::set<size_t> liars_;                 // Agents.
  std::set<protocol::Digest> overstated_;  // Attaches that claim too much, and
  std::set<protocol::Digest> falsified_;   // those with other parameters.
  int mask_epoch_ = 0;
  bool finished_ = false;
};

}  // namespace pactrain::sim

#endif  // PACTRAIN_TESTS_SIM_SIMULATION_H_
