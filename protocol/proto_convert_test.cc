#include "protocol/proto_convert.h"

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "protocol/limits.h"
#include "protocol/proto_check.h"
#include "protocol/reach.h"

namespace pactrain::protocol {
namespace {

using base::StatusIs;
using ::testing::HasSubstr;

const GroupId kGroup{"job", 2};
const std::string kCluster(32, 'a');

Generation MakeGeneration() {
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
               {"c", {3, 1}, "z", "10.0.0.3:5", {1}, {{9, 1}}}};
  g.plan.trees = {{{1, 1, 1}}};
  g.decision = {5, Mode::kCompacted, Codec::kBf16, {4, 4}, {5, 5}, "because"};
  g.on_shrink = OnShrink::kPause;
  g.donor = 1;
  g.needs_state = {0, 2};
  return g;
}

std::vector<AgentMessage> AgentMessages() {
  Trainer trainer{1,       4,      {7, 8},
                  "run-1", {9, 9}, "2 parameters",
                  100,     12,     OnShrink::kContinue,
                  3,       {6, 7}};
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
                    {{80, 5, 1.5, 2.5, 3.5, 0.5, 0.25, 4.5}}};
  return {AgentHello{"a", {1, 2}, "x", "10.0.0.1:9", "0.1.0", kCluster, 7},
          Heartbeat{},
          TrainerJoined{kGroup, trainer, 4},
          TrainerLeft{kGroup, 1, {7, 8}, "killed by signal 9", true, true},
          MaskVote{kGroup, 4, 1, {5, 5}, {4, 4}, 3, 2, false, 30, 100},
          PrepareAnswer{kGroup, 4, 5, false, "no buffers"},
          report};
}

base::Secret MakeKey() {
  base::Secret key;
  key.bytes.fill(0xAB);
  return key;
}

std::vector<CoordinatorMessage> CoordinatorMessages() {
  return {Welcome{kCluster, 3, absl::Milliseconds(250)},
          StartGeneration{MakeGeneration(), MakeKey()},
          GroupWaiting{kGroup, "waiting for rank 1 of 2"},
          JoinRefused{kGroup, 1, {7, 8}, "models differ"},
          Prepare{kGroup, 4, MakeGeneration().decision},
          Revoke{kGroup, 4, 5},
          EndGeneration{kGroup, 4, "rank 1 left"}};
}

// Two equal messages have equal wire forms, and those are easy to compare.
TEST(ProtoConvert, AgentMessagesSurviveTheRoundTrip) {
  for (const AgentMessage& message : AgentMessages()) {
    const v1::AgentMessage proto = ToProto(message);
    ASSERT_OK_AND_ASSIGN(const AgentMessage back, FromProto(proto));
    EXPECT_EQ(back.index(), message.index());
    EXPECT_EQ(ToProto(back).DebugString(), proto.DebugString());
  }
}

TEST(ProtoConvert, CoordinatorMessagesSurviveTheRoundTrip) {
  for (const CoordinatorMessage& message : CoordinatorMessages()) {
    const v1::CoordinatorMessage proto = ToProto(message);
    ASSERT_OK_AND_ASSIGN(const CoordinatorMessage back, FromProto(proto));
    EXPECT_EQ(back.index(), message.index());
    EXPECT_EQ(ToProto(back).DebugString(), proto.DebugString());
  }
}

TEST(ProtoConvert, AGenerationSurvivesTheRoundTrip) {
  const Generation generation = MakeGeneration();
  ASSERT_OK_AND_ASSIGN(const Generation back, FromProto(ToProto(generation)));
  EXPECT_EQ(back, generation);
}

TEST(ProtoConvert, AGenerationsKeySurvivesTheRoundTrip) {
  const CoordinatorMessage message =
      StartGeneration{MakeGeneration(), MakeKey()};
  ASSERT_OK_AND_ASSIGN(const CoordinatorMessage back,
                       FromProto(ToProto(message)));
  EXPECT_TRUE(std::get<StartGeneration>(back).key == MakeKey());
}

TEST(ProtoConvert, EveryCodecSurvives) {
  for (int number = 1; number <= static_cast<int>(kLastCodec); ++number) {
    Generation generation = MakeGeneration();
    generation.decision.codec = static_cast<Codec>(number);
    generation.decision.mode =
        IsLevels(generation.decision.codec) ? Mode::kTernary : Mode::kCompacted;
    ASSERT_OK_AND_ASSIGN(Generation back, FromProto(ToProto(generation)));
    EXPECT_EQ(back, generation);
  }
}

TEST(ProtoConvert, ATrainersFieldsSurvive) {
  const auto message = std::get<TrainerJoined>(AgentMessages()[2]);
  ASSERT_OK_AND_ASSIGN(const AgentMessage back,
                       FromProto(ToProto(AgentMessage(message))));
  EXPECT_EQ(std::get<TrainerJoined>(back).trainer, message.trainer);
}

// One field of one good message made bad; the error names it.
struct BadAgent {
  const char* field;
  size_t message;
  void (*spoil)(v1::AgentMessage&);
};

TEST(ProtoConvert, AnAgentMayHaveNoAddressToDial) {
  v1::AgentMessage message = ToProto(AgentMessage(
      AgentHello{"a", {1, 1}, "s", std::string(kNobodyDials), "1", "", 0}));
  ASSERT_OK_AND_ASSIGN(const AgentMessage read, FromProto(message));
  EXPECT_EQ(std::get<AgentHello>(read).data_address, "none");
}

TEST(ProtoConvert, ABadFieldOfAnAgentIsNamed) {
  using P = v1::AgentMessage;
  const BadAgent kCases[] = {
      {"no kind", 1, [](P& p) { p.clear_kind(); }},
      {"hello.agent", 0, [](P& p) { p.mutable_hello()->set_agent("A b"); }},
      {"hello.agent", 0,
       [](P& p) { p.mutable_hello()->set_agent(std::string(64, 'a')); }},
      {"hello.site", 0, [](P& p) { p.mutable_hello()->clear_site(); }},
      {"hello.incarnation", 0,
       [](P& p) { p.mutable_hello()->set_incarnation("short"); }},
      {"hello.incarnation", 0,
       [](P& p) { p.mutable_hello()->clear_incarnation(); }},
      {"hello.incarnation", 0,
       [](P& p) { p.mutable_hello()->set_incarnation(std::string(16, '\0')); }},
      {"has no port", 0,
       [](P& p) { p.mutable_hello()->set_data_address("host"); }},
      {"hello.data_address", 0,
       [](P& p) {
         p.mutable_hello()->set_data_address(std::string(300, 'h') + ":1");
       }},
      {"hello.version", 0,
       [](P& p) { p.mutable_hello()->set_version(std::string(64, 'v')); }},
      {"hello.cluster_id", 0,
       [](P& p) { p.mutable_hello()->set_cluster_id("abc"); }},
      {"group.job", 2,
       [](P& p) {
         p.mutable_trainer_joined()->mutable_group()->set_job("../x");
       }},
      {"group.model", 2,
       [](P& p) {
         p.mutable_trainer_joined()->mutable_group()->set_model(16);
       }},
      {"trainer.world_size", 2,
       [](P& p) {
         p.mutable_trainer_joined()->mutable_trainer()->set_world_size(1025);
       }},
      {"trainer.world_size", 2,
       [](P& p) {
         p.mutable_trainer_joined()->mutable_trainer()->set_world_size(0);
       }},
      {"trainer.rank", 2,
       [](P& p) {
         p.mutable_trainer_joined()->mutable_trainer()->set_rank(4);
       }},
      {"trainer.attach_id", 2,
       [](P& p) {
         p.mutable_trainer_joined()->mutable_trainer()->clear_attach_id();
       }},
      {"trainer.launch", 2,
       [](P& p) {
         p.mutable_trainer_joined()->mutable_trainer()->set_launch(
             std::string(64, 'l'));
       }},
      {"trainer.model_digest", 2,
       [](P& p) {
         p.mutable_trainer_joined()->mutable_trainer()->clear_model_digest();
       }},
      {"trainer.model_summary", 2,
       [](P& p) {
         p.mutable_trainer_joined()->mutable_trainer()->set_model_summary(
             std::string(256, 's'));
       }},
      {"trainer.elements", 2,
       [](P& p) {
         p.mutable_trainer_joined()->mutable_trainer()->set_elements(1ull
                                                                     << 31);
       }},
      {"trainer.resume_step", 2,
       [](P& p) {
         p.mutable_trainer_joined()->mutable_trainer()->set_resume_step(~0ull);
       }},
      {"trainer_left.rank", 3,
       [](P& p) { p.mutable_trainer_left()->set_rank(1024); }},
      {"trainer_left.reason", 3,
       [](P& p) {
         p.mutable_trainer_left()->set_reason(std::string(4097, 'r'));
       }},
      {"mask_vote.settle_steps", 4,
       [](P& p) { p.mutable_mask_vote()->set_settle_steps(0); }},
      {"mask_vote.kept_elements", 4,
       [](P& p) { p.mutable_mask_vote()->set_kept_elements(101); }},
      {"mask_vote.elements", 4,
       [](P& p) { p.mutable_mask_vote()->set_elements(~0ull); }},
      {"mask_vote.mask_digest", 4,
       [](P& p) { p.mutable_mask_vote()->set_mask_digest("x"); }},
      {"mask_vote.layout_digest", 4,
       [](P& p) { p.mutable_mask_vote()->clear_layout_digest(); }},
      {"prepare_answer.reason", 5,
       [](P& p) {
         p.mutable_prepare_answer()->set_reason(std::string(4097, 'r'));
       }},
      {"step_report.step_seconds", 6,
       [](P& p) { p.mutable_step_report()->set_step_seconds(-1); }},
      {"goodput", 6,
       [](P& p) {
         p.mutable_step_report()
             ->mutable_links(0)
             ->set_goodput_bytes_per_second(
                 std::numeric_limits<double>::infinity());
       }},
      {"rtt_seconds", 6,
       [](P& p) {
         p.mutable_step_report()->mutable_links(0)->set_rtt_seconds(
             std::nan(""));
       }},
      {"peer_site", 6,
       [](P& p) {
         p.mutable_step_report()->mutable_links(0)->clear_peer_site();
       }},
      {"step_report.noise.error", 6,
       [](P& p) { p.mutable_step_report()->mutable_noise(0)->set_error(-1); }},
      {"step_report.noise.clip", 6,
       [](P& p) { p.mutable_step_report()->mutable_noise(0)->set_clip(-1); }},
      {"step_report.links", 6,
       [](P& p) {
         for (int i = 0; i < kMaxSites; ++i)
           p.mutable_step_report()->add_links();
       }},
  };
  for (const BadAgent& bad : kCases) {
    v1::AgentMessage proto = ToProto(AgentMessages()[bad.message]);
    bad.spoil(proto);
    EXPECT_THAT(FromProto(proto), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr(bad.field)));
  }
}

// A field of a good message at its limit and one above.
void ExpectLimit(size_t message, const char* field,
                 const std::function<void(v1::AgentMessage&, bool)>& set) {
  for (const bool above : {false, true}) {
    v1::AgentMessage proto = ToProto(AgentMessages()[message]);
    set(proto, above);
    EXPECT_THAT(FromProto(proto),
                StatusIs(above ? absl::StatusCode::kInvalidArgument
                               : absl::StatusCode::kOk,
                         HasSubstr(above ? field : "")));
  }
}

TEST(ProtoConvert, sec_limits_RanksOfAJob) {
  ExpectLimit(2, "trainer.world_size", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_joined()->mutable_trainer()->set_world_size(kMaxRanks +
                                                                  above);
  });
  ExpectLimit(3, "trainer_left.rank", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_left()->set_rank(kMaxRanks - 1 + above);
  });
}

TEST(ProtoConvert, sec_limits_Models) {
  ExpectLimit(2, "group.model", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_joined()->mutable_group()->set_model(kMaxModels - 1 +
                                                           above);
  });
}

// A generation of so many sites, agents, and trainers of each agent.
Generation OfSize(int sites, int agents, int trainers) {
  Generation g;
  g.group = kGroup;
  g.term = g.number = 1;
  g.decision.version = 1;
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

TEST(ProtoConvert, sec_limits_SitesAgentsAndTrainersOfAGeneration) {
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

TEST(ProtoConvert, sec_limits_ElementsOfAModel) {
  ExpectLimit(2, "trainer.elements", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_joined()->mutable_trainer()->set_elements(kMaxElements +
                                                                above);
  });
}

TEST(ProtoConvert, sec_limits_JobName) {
  ExpectLimit(2, "group.job", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_joined()->mutable_group()->set_job(
        std::string(kMaxNameLength + above, 'a'));
  });
  for (const char* name : {"", "A", "-a", "a-", "a/b", "a b", "<b>", "a\n"}) {
    EXPECT_FALSE(CheckName("job", name).ok()) << name;
  }
}

TEST(ProtoConvert, sec_limits_Texts) {
  ExpectLimit(3, "trainer_left.reason", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_left()->set_reason(
        std::string(kMaxTextLength + above, 'r'));
  });
}

TEST(ProtoConvert, sec_limits_LinksAndNoiseOfAReport) {
  ExpectLimit(6, "step_report.links", [](v1::AgentMessage& p, bool above) {
    v1::StepReport& report = *p.mutable_step_report();
    while (report.links_size() < kMaxSites + above) {
      *report.add_links() = v1::StepReport::Link(report.links(0));
    }
  });
  ExpectLimit(6, "step_report.noise", [](v1::AgentMessage& p, bool above) {
    v1::StepReport& report = *p.mutable_step_report();
    while (report.noise_size() < static_cast<int>(kMaxNoiseSamples) + above) {
      *report.add_noise() = v1::StepReport::Noise(report.noise(0));
    }
  });
}

struct BadCoordinator {
  const char* field;
  size_t message;
  void (*spoil)(v1::CoordinatorMessage&);
};

TEST(ProtoConvert, ABadFieldOfTheCoordinatorIsNamed) {
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

TEST(ProtoConvert, LongAndOddTextsAreMadeFit) {
  EXPECT_EQ(WriteText("abc", 2), "ab");
  EXPECT_EQ(WriteText("a\xffz", 9), "a?z");
  EXPECT_EQ(WriteText("\xc3\xa4\xc3\xa4", 3),
            "\xc3\xa4");                           // Not half a character.
  EXPECT_EQ(WriteText("\xc0\x80", 9), "??");       // Overlong.
  EXPECT_EQ(WriteText("\xed\xa0\x80", 9), "???");  // A surrogate.
  EXPECT_EQ(WriteText("\xf0\x9f\x98\x80!", 9), "\xf0\x9f\x98\x80!");
  const CoordinatorMessage long_reason =
      EndGeneration{kGroup, 4, std::string(9000, '\xe4')};
  const v1::CoordinatorMessage proto = ToProto(long_reason);
  EXPECT_OK(FromProto(proto));
  v1::CoordinatorMessage parsed;
  EXPECT_TRUE(parsed.ParseFromString(proto.SerializeAsString()));
}

// Bytes of good messages with some flipped: an error or a good message, no
// crash.
TEST(ProtoConvert, SpoiltBytesNeverCrash) {
  std::mt19937 random(7);
  int parsed = 0, accepted = 0;
  const auto spoil = [&](std::string bytes) {
    for (int flips = 1 + random() % 3; flips > 0 && !bytes.empty(); --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    return bytes;
  };
  for (int round = 0; round < 3000; ++round) {
    const auto agent = AgentMessages();
    const auto coordinator = CoordinatorMessages();
    v1::AgentMessage a;
    if (a.ParseFromString(
            spoil(ToProto(agent[round % 7]).SerializeAsString()))) {
      ++parsed;
      accepted += FromProto(a).ok();
    }
    v1::CoordinatorMessage c;
    if (c.ParseFromString(
            spoil(ToProto(coordinator[round % 7]).SerializeAsString()))) {
      ++parsed;
      accepted += FromProto(c).ok();
    }
  }
  EXPECT_GT(parsed, 300);
  EXPECT_GT(parsed, accepted);
}

}  // namespace
}  // namespace pactrain::protocol
