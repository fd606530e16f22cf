// A group whose ranks come and go, for tests: four trainers at agents a (site
// x: ranks 0, 1) and b (site y: ranks 2, 3).
#ifndef PACTRAIN_COORDINATOR_CORE_TEST_REGROUP_H_
#define PACTRAIN_COORDINATOR_CORE_TEST_REGROUP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/test_cluster.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {

class RegroupTest : public ::testing::Test {
 protected:
  void Start(protocol::OnShrink on_shrink) {
    t_.on_shrink = on_shrink;
    t_.FormFour();
    t_.Clear();
  }
  // The trainer attaches again with the state before step `next`, of the
  // lineage of `generation`.
  void Return(const std::string& agent, uint32_t rank, uint64_t next,
              uint64_t generation = 1, uint32_t world = 4,
              const std::string& launch = "run-1") {
    t_.lineage = {t_.LineageOf(generation), next};
    t_.resume_step = next;
    t_.Join(agent, rank, world, launch);
    t_.lineage = {};
    t_.resume_step = 0;
  }
  // As an agent does whose generation has ended.
  void EndAt(const std::string& agent, std::vector<uint32_t> ranks,
             uint64_t next) {
    for (uint32_t rank : ranks) t_.Leave(agent, rank, "rank 3 left", true);
    for (uint32_t rank : ranks) Return(agent, rank, next);
  }
  // Of agent b; the others end their generation and attach again.
  void LoseRankThree() {
    t_.Leave("b", 3, "killed by signal 9");
    EndAt("b", {2}, 7);
    EndAt("a", {0, 1}, 7);
  }
  protocol::Generation Newest() const {
    return t_.journal().groups.at(t_.group).generation;
  }

  TestCluster t_;
};

// Members that lie of their own seats: the proof is good, and the state is not.
class LyingMemberTest : public RegroupTest {
 protected:
  // Agents a (ranks 0, 1), b (2) and c (3), each of a site.
  void StartThree() {
    t_.on_shrink = protocol::OnShrink::kContinue;
    t_.Connect("a", "x");
    t_.Connect("b", "y");
    t_.Connect("c", "z");
    for (uint32_t rank : {0, 1}) t_.Join("a", rank, 4);
    t_.Join("b", 2, 4);
    t_.Join("c", 3, 4);
    t_.Clear();
  }
  // Its generation has ended there; its ranks come back after `next` steps.
  void ComeBack(const std::string& agent, uint64_t next) {
    for (uint32_t rank : RanksOf(agent)) {
      t_.Leave(agent, rank, "it ended", true);
    }
    for (uint32_t rank : RanksOf(agent)) Return(agent, rank, next);
  }
  // All after `next` steps, with these parameters.
  void ComeBackWith(const std::string& agent, uint64_t parameters,
                    uint64_t next = 7) {
    t_.parameters = {parameters, parameters};
    ComeBack(agent, next);
    t_.parameters = {};
  }
  // Agents a (ranks 0, 1) and b (2, 3), which hold other parameters after 7.
  void Differ() {
    Start(protocol::OnShrink::kContinue);
    t_.parameters = {5, 5};
    EndAt("a", {0, 1}, 7);
    t_.parameters = {6, 6};
    EndAt("b", {2, 3}, 7);
    t_.parameters = {};
    t_.Advance(absl::Seconds(1));
  }
  // Rank 3, after so many steps of gradients, and of all.
  void ComeBackAfter(uint64_t committed, uint64_t steps) {
    t_.Leave("c", 3, "it ended", true);
    t_.lineage = {t_.LineageOf(1), committed};
    t_.resume_step = Newest().base_step + steps;
    t_.Join("c", 3, 4);
  }
  // It has voted for so many steps, and lost a trainer.
  void LastWord(const std::string& agent, uint64_t steps) {
    protocol::StepReport report;
    report.group = t_.group;
    report.generation = 1;
    report.committed_count = steps;
    report.committed_step = Newest().base_step + steps - 1;
    t_.Say(agent, protocol::AgentMessage(protocol::LocalTrainers{
                      t_.group, 0, {}, {}, {}, report}));
  }
  void Die(const std::string& agent, uint64_t steps) {
    LastWord(agent, steps);
    for (uint32_t rank : RanksOf(agent)) {
      t_.Leave(agent, rank, "killed by signal 9");
    }
  }
  std::string Waiting(const std::string& agent) const {
    const auto waiting = t_.Got<protocol::GroupWaiting>(agent);
    return waiting ? waiting->reason : "";
  }
  void Evict(const std::string& agent) {
    t_.Act(t_.state().Expel(agent, std::nullopt, "evicted", t_.now()));
    t_.Advance(absl::Seconds(1));
  }

 private:
  static std::vector<uint32_t> RanksOf(const std::string& agent) {
    if (agent == "a") return {0, 1};
    return {agent == "b" ? 2u : 3u};
  }
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_TEST_REGROUP_H_
