// What an agent takes from the coordinator.
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "protocol/limits.h"
#include "protocol/proto_convert.h"
#include "protocol/test_messages.h"

namespace pactrain::protocol {
namespace {

using base::StatusIs;
using ::testing::HasSubstr;

// A generation of so many sites, agents, and trainers of each agent.
Generation OfSize(int sites, int agents, int trainers) {
  Generation g;
  g.group = kGroup;
  g.term = g.number = 1;
  g.decision.version = 1;
  g.lineage.id = {5, 5};
  for (int s = 0; s < sites; ++s) g.sites.push_back(absl::StrCat("s", 100 + s));
  for (int a = 0; a < agents; ++a) {
    Member member;
    member.agent = absl::StrCat("a", 100 + a);
    member.incarnation = {1, 1};
    member.site = g.sites[a * sites / agents];
    member.data_address = "127.0.0.1:1";
    for (int t = 0; t < trainers; ++t) {
      member.ranks.push_back(g.world_size++);
      member.attach_ids.push_back({2, g.world_size});
    }
    g.members.push_back(member);
  }
  g.plan.trees.push_back({std::vector<uint16_t>(sites)});
  return g;
}

absl::Status Received(const Generation& generation) {
  return FromProto(ToProto(generation)).status();
}

TEST(ProtoCoordinator, sec_limits_SitesAgentsAndTrainersOfAGeneration) {
  const auto refused = [](const char* field) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(field));
  };
  EXPECT_OK(Received(OfSize(kMaxSites, kMaxSites, 1)));
  EXPECT_THAT(Received(OfSize(kMaxSites + 1, kMaxSites + 1, 1)),
              refused("generation.sites"));
  EXPECT_OK(Received(OfSize(1, kMaxAgents, 1)));
  EXPECT_THAT(Received(OfSize(1, kMaxAgents + 1, 1)),
              refused("generation.members"));
  EXPECT_OK(Received(OfSize(1, 1, kMaxTrainersPerAgent)));
  EXPECT_THAT(Received(OfSize(1, 1, kMaxTrainersPerAgent + 1)),
              refused("member.ranks"));
  EXPECT_OK(Received(OfSize(1, 32, kMaxRanks / 32)));
  EXPECT_THAT(Received(OfSize(1, 25, (kMaxRanks + 1) / 25)),
              refused("world_size: 1025"));
  Generation trees = OfSize(1, 1, 1);
  trees.plan.trees.resize(kMaxSites, trees.plan.trees[0]);
  EXPECT_OK(Received(trees));
  trees.plan.trees.push_back(trees.plan.trees[0]);
  EXPECT_THAT(Received(trees), refused("plan.trees"));
}

struct BadCoordinator {
  const char* field;
  size_t message;
  void (*spoil)(v1::CoordinatorMessage&);
};

TEST(ProtoCoordinator, ABadFieldOfTheCoordinatorIsNamed) {
  using P = v1::CoordinatorMessage;
  static constexpr auto kGeneration = [](P& p) {
    return p.mutable_start_generation()->mutable_generation();
  };
  static constexpr auto kDecision = [](P& p) {
    return p.mutable_prepare()->mutable_decision();
  };
  const BadCoordinator kCases[] = {
      {"no kind", 5, [](P& p) { p.clear_kind(); }},
      {"welcome.cluster_id", 0,
       [](P& p) { p.mutable_welcome()->clear_cluster_id(); }},
      {"welcome.term", 0, [](P& p) { p.mutable_welcome()->set_term(0); }},
      {"heartbeat", 0,
       [](P& p) { p.mutable_welcome()->set_heartbeat_interval_ms(0); }},
      {"group_waiting.reason", 2,
       [](P& p) {
         p.mutable_group_waiting()->set_reason(std::string(4097, 'r'));
       }},
      {"join_refused.attach_id", 3,
       [](P& p) { p.mutable_join_refused()->clear_attach_id(); }},
      {"decision.version", 4, [](P& p) { kDecision(p)->set_version(0); }},
      {"decision.mode", 4, [](P& p) { kDecision(p)->clear_mode(); }},
      {"decision.mode", 4,
       [](P& p) { kDecision(p)->set_mode(v1::MODE_TERNARY); }},
      {"decision.codec", 4,
       [](P& p) { kDecision(p)->set_codec(static_cast<v1::Codec>(8)); }},
      {"decision.mask_digest", 4,
       [](P& p) { kDecision(p)->clear_mask_digest(); }},
      {"decision.layout_digest", 4,
       [](P& p) { kDecision(p)->clear_layout_digest(); }},
      {"must be empty for FULL", 4,
       [](P& p) { kDecision(p)->set_mode(v1::MODE_FULL); }},
      {"decision.reason", 4,
       [](P& p) { kDecision(p)->set_reason(std::string(256, 'r')); }},
      {"start_generation.key has 0 bytes; 32 are needed", 1,
       [](P& p) { p.mutable_start_generation()->clear_key(); }},
      {"start_generation.key has 31 bytes; 32 are needed", 1,
       [](P& p) {
         p.mutable_start_generation()->set_key(std::string(31, 'k'));
       }},
      {"start_generation.key has 33 bytes; 32 are needed", 1,
       [](P& p) {
         p.mutable_start_generation()->set_key(std::string(33, 'k'));
       }},
      {"start_generation.key is all zero", 1,
       [](P& p) {
         p.mutable_start_generation()->set_key(std::string(32, '\0'));
       }},
      {"generation.launch", 1,
       [](P& p) { kGeneration(p)->set_launch(std::string(64, 'l')); }},
      {"generation.sites", 1, [](P& p) { kGeneration(p)->clear_sites(); }},
      {"generation.members", 1, [](P& p) { kGeneration(p)->clear_members(); }},
      {"world_size", 1,
       [](P& p) { kGeneration(p)->set_world_size(2000000000); }},
      {"rank", 1,
       [](P& p) {
         kGeneration(p)->mutable_members(0)->set_ranks(0, 4000000000u);
       }},
      {"member.attach_ids", 1,
       [](P& p) { kGeneration(p)->mutable_members(0)->clear_attach_ids(); }},
      {"member.ranks", 1,
       [](P& p) { kGeneration(p)->mutable_members(0)->clear_ranks(); }},
      {"member.incarnation", 1,
       [](P& p) { kGeneration(p)->mutable_members(0)->clear_incarnation(); }},
      {"plan", 1, [](P& p) { kGeneration(p)->mutable_plan()->set_swap(true); }},
      {"plan.tree.parent", 1,
       [](P& p) {
         kGeneration(p)->mutable_plan()->mutable_trees(0)->set_parent(0, 70000);
       }},
      {"plan.trees", 1,
       [](P& p) {
         for (int i = 0; i < kMaxSites; ++i)
           kGeneration(p)->mutable_plan()->add_trees();
       }},
  };
  for (const BadCoordinator& bad : kCases) {
    v1::CoordinatorMessage proto = ToProto(CoordinatorMessages()[bad.message]);
    bad.spoil(proto);
    EXPECT_THAT(FromProto(proto), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr(bad.field)));
  }
}

}  // namespace
}  // namespace pactrain::protocol
