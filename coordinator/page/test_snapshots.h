// Snapshots that tests show.
#ifndef PACTRAIN_COORDINATOR_PAGE_TEST_SNAPSHOTS_H_
#define PACTRAIN_COORDINATOR_PAGE_TEST_SNAPSHOTS_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/snapshot.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {

inline GroupSnapshot RunningGroup(const std::string& job) {
  GroupSnapshot g;
  g.group = {job, 0};
  g.phase = GroupPhase::kRunning;
  g.reason = "all masks are equal";
  protocol::Generation& generation = g.generation.emplace();
  generation.group = g.group;
  generation.number = 1;
  generation.world_size = 2;
  generation.sites = {"a", "b"};
  generation.plan.swap = true;
  generation.decision.version = 2;
  generation.members = {{"a0", {}, "a", "", {0}, {{}}},
                        {"b0", {}, "b", "", {1}, {{}}}};
  g.in_force = protocol::Decision{
      2,      protocol::Mode::kCompacted, protocol::Codec::kFp32, {1, 1},
      {2, 2}, "all masks are equal"};
  g.committed_step = 7;
  g.committed_total = 7;
  g.kept_elements = 10;
  g.elements = 100;
  g.account.dense_bytes = 10e9;
  g.account.kept_bytes = 1e9;
  g.account.sent_bytes = 1e9;
  g.account.saved_seconds = 120;
  g.account.saved_by = SavedBy::kFull;
  g.links = {{"a0", "a", "b", 1000, 1000, 10e6, 0.02},
             {"b0", "b", "a", 1000, 1000, 10e6, 0.02}};
  g.paces = {{"a0", 0.3, 1}, {"b0", 0.1, 1}};
  g.exchange_share = 0.1;
  return g;
}

inline StateSnapshot RunningSnapshot() {
  StateSnapshot s;
  s.cluster_id = "c0ffee";
  s.term = 1;
  s.risk_bound = 0.3;
  s.agents = {{"a0", "a", true, "", "", ""}, {"b0", "b", true, "", "", ""}};
  s.groups = {RunningGroup("train")};
  return s;
}

// As many parameters as may have a name.
inline std::shared_ptr<const protocol::KeepByParameter> LargeKeep() {
  protocol::KeepByParameter keep;
  keep.mask_digest = {1, 1};
  for (uint64_t i = 0; i < protocol::kMaxKeepParameters; ++i) {
    keep.parameters.push_back(
        {absl::StrCat("layers.", i, ".attention.projection.weight"),
         1000 * (i + 1), 200'000});
  }
  keep.others = 40;
  keep.others_kept = keep.others_elements = 12'345;
  return std::make_shared<const protocol::KeepByParameter>(std::move(keep));
}

// `turn` grows: each brings other decisions, masks and faults, with reasons as
// long as they may be.
inline StateSnapshot LargeSnapshot(int jobs, int agents, int turn) {
  StateSnapshot s = RunningSnapshot();
  s.agents.clear();
  s.groups.clear();
  for (int i = 0; i < agents; ++i) {
    s.agents.push_back({absl::StrCat("agent", i), absl::StrCat("s", i % 32),
                        true, "10.0.0.1:1", "1.0", "10.0.0.1:2"});
  }
  for (int j = 0; j < jobs; ++j) {
    GroupSnapshot g = RunningGroup(absl::StrCat("job", j));
    g.reason = std::string(900, 'r');
    g.in_force->version = static_cast<uint64_t>(turn) + 1;
    g.in_force->mask_digest = {static_cast<uint64_t>(turn), 1};
    g.in_force->reason = std::string(900, 'w');
    g.failed_attempts_total = static_cast<uint64_t>(turn);
    g.account.fallbacks[0] = static_cast<uint64_t>(turn);
    g.account.mask_changes = static_cast<uint64_t>(turn);
    g.keep_by_parameter = LargeKeep();
    g.links.clear();
    g.paces.clear();
    for (int i = 0; i < 10; ++i) {
      const std::string name = absl::StrCat("agent", (10 * j + i) % agents);
      const std::string site = absl::StrCat("s", (10 * j + i) % 32);
      g.paces.push_back({name, 0.1, 1});
      g.links.push_back({name, site, "s0", 1, 1, 10e6, 0.1});
    }
    s.groups.push_back(std::move(g));
  }
  return s;
}

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_PAGE_TEST_SNAPSHOTS_H_
