// A good message of each kind, for tests.
#ifndef PACTRAIN_PROTOCOL_TEST_MESSAGES_H_
#define PACTRAIN_PROTOCOL_TEST_MESSAGES_H_

#include <map>
#include <string>
#include <vector>

#include "base/secret.h"
#include "protocol/control.h"
#include "protocol/local_trainers.h"
#include "protocol/types.h"

namespace pactrain::protocol {

inline const GroupId kGroup{"job", 2};
inline const std::string kCluster(32, 'a');

inline Generation MakeGeneration() {
  Generation g;
  g.group = kGroup;
  g.term = 3;
  g.number = 4;
  g.world_size = 3;
  g.launch = "run-1";
  g.base_step = 77;
  g.sites = {"x", "y", "z"};
  g.members = {{"a", {1, 1}, "x", "10.0.0.1:5", {2}, {{9, 2}}},
               {"b", {2, 1}, "y", "10.0.0.2:5", {0}, {{9, 0}}},
               {"c", {3, 1}, "z", "10.0.0.3:5", {1}, {{9, 1}}, true}};
  g.plan.trees = {{{1, 1, 1}}};
  g.plan.even_chunks = true;
  g.decision = {5, Mode::kCompacted, Codec::kBf16, {4, 4}, {5, 5}, "because"};
  g.on_shrink = OnShrink::kPause;
  g.donor = 1;
  g.needs_state = {0, 2};
  g.lineage = {{8, 8}, 11};
  g.onset = {4, 20, Mode::kTernary, Codec::kLevels7};
  return g;
}

inline base::Secret MakeKey() {
  base::Secret key;
  key.bytes.fill(0xAB);
  return key;
}

inline HistoryMark MakeMark() { return {{3, 3}, 4, {2, 2}, 5, 11, MakeKey()}; }

inline AuditHead MakeHead(uint64_t term = 3, uint64_t number = 57) {
  return {term, number, std::string(kAuditHashBytes, 'h'), MakeKey()};
}

inline std::vector<AgentMessage> AgentMessages() {
  Trainer trainer{1,
                  4,
                  {7, 8},
                  "run-1",
                  {9, 9},
                  "2 parameters",
                  100,
                  12,
                  OnShrink::kContinue,
                  {{8, 8}, 11},
                  {6, 7}};
  trainer.declared = {{4, 4}, {5, 5}, 30, 100};
  trainer.onset = {4, 20, Mode::kTernary, Codec::kLevels7};
  trainer.replace = true;
  trainer.last_generation = 9;
  trainer.proof = MakeKey();
  StepReport report{kGroup,
                    4,
                    80,
                    3,
                    5,
                    1,
                    0.5,
                    0.25,
                    0.75,
                    {{"y", 10, 20, 1e6, 0.01}},
                    {{80, 5, 1.5, 2.5, 3.5, 0.5, 0.25, 4.5}},
                    79,
                    1000,
                    3000,
                    9000};
  report.failed_by_cause[static_cast<size_t>(Cause::kStall)] = 1;
  report.keep_by_parameter = {{5, 5}, {{"fc.weight", 12, 40}}, 2, 18, 60};
  report.device_path = {"device", "not by NCCL: rank 1 left", 7, 2};
  return {
      AgentHello{"a",
                 {1, 2},
                 "x",
                 "10.0.0.1:9",
                 "0.1.0",
                 kCluster,
                 "10.0.0.1:8",
                 MakeMark(),
                 {MakeHead(2, 41), MakeHead()}},
      Heartbeat{},
      LocalTrainers{
          kGroup,
          7,
          {{kGroup, trainer, 4}},
          {{kGroup, 1, {7, 8}, "killed by signal 9", true, true, {"c"}, true}},
          {{kGroup, 4, 1, {5, 5}, {4, 4}, 3, 2, false, 30, 100, "fc 12", 78}},
          report},
      PrepareAnswer{kGroup, 4, 5, false, "no buffers"},
      report,
      Heartbeat{MakeHead()}};
}

// What an agent has of trainers, as it says it.
class TrainersOfAgent {
 public:
  // Of TrainerJoined, TrainerLeft or MaskVote: all of the group, with that.
  template <typename T>
  LocalTrainers With(const T& what) {
    LocalTrainers& local = by_group_[what.group];
    Add(what, local);
    local.group = what.group;
    local.revision = ++revision_;
    return local;
  }
  const std::map<GroupId, LocalTrainers>& by_group() const { return by_group_; }
  void Clear() { by_group_.clear(); }

 private:
  std::map<GroupId, LocalTrainers> by_group_;
  uint64_t revision_ = 0;
};

inline std::vector<CoordinatorMessage> CoordinatorMessages() {
  return {Welcome{kCluster, 3, absl::Milliseconds(250), MakeMark()},
          StartGeneration{MakeGeneration(), MakeKey(), {MakeKey()}},
          GroupWaiting{kGroup, "waiting for rank 1 of 2"},
          JoinRefused{kGroup, 1, {7, 8}, "models differ", true},
          Prepare{kGroup, 4, MakeGeneration().decision},
          Revoke{kGroup, 4, 5},
          EndGeneration{kGroup, 4, "rank 1 left"},
          MakeMark(),
          HistoryMark{{3, 3}, 1, {}, 0, 1, MakeKey(), MakeHead()},
          Welcome{kCluster, 1, absl::Milliseconds(10), {}, true, "0.2.0"}};
}

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_TEST_MESSAGES_H_
