// A group whose ranks come and go, for tests: four trainers at agents a (site
// x: ranks 0, 1) and b (site y: ranks 2, 3).
#ifndef PACTRAIN_COORDINATOR_CORE_TEST_REGROUP_H_
#define PACTRAIN_COORDINATOR_CORE_TEST_REGROUP_H_

#include <cstdint>
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

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_TEST_REGROUP_H_
