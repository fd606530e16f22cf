// What the coordinator takes from an agent.
#include <cmath>
#include <functional>
#include <limits>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "protocol/limits.h"
#include "protocol/proto_check.h"
#include "protocol/proto_convert.h"
#include "protocol/reach.h"
#include "protocol/test_messages.h"

namespace pactrain::protocol {
namespace {

using base::StatusIs;
using ::testing::HasSubstr;

TEST(ProtoAgent, AnAgentMayHaveNoAddressToDial) {
  v1::AgentMessage message = ToProto(AgentMessage(
      AgentHello{"a", {1, 1}, "s", std::string(kNobodyDials), "1", ""}));
  ASSERT_OK_AND_ASSIGN(const AgentMessage read, FromProto(message));
  EXPECT_EQ(std::get<AgentHello>(read).data_address, "none");
}

TEST(ProtoAgent, ACauseThatANewerAgentKnowsIsLeftOut) {
  v1::AgentMessage message = ToProto(AgentMessages().back());
  v1::FailedAttempts& newer =
      *message.mutable_step_report()->add_failed_by_cause();
  newer.set_cause(kCauses);
  newer.set_count(9);
  ASSERT_OK_AND_ASSIGN(const AgentMessage read, FromProto(message));
  EXPECT_EQ(std::get<StepReport>(read).failed_by_cause,
            std::get<StepReport>(AgentMessages().back()).failed_by_cause);
}

// One field of one good message made bad; the error names it.
struct BadAgent {
  const char* field;
  size_t message;
  void (*spoil)(v1::AgentMessage&);
};

TEST(ProtoAgent, ABadFieldOfAnAgentIsNamed) {
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
      {"has no port", 0,
       [](P& p) { p.mutable_hello()->set_metrics_address("host"); }},
      {"hello.metrics_address", 0,
       [](P& p) {
         p.mutable_hello()->set_metrics_address(std::string(300, 'h') + ":1");
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
      {"trainer.lineage.id", 2,
       [](P& p) {
         p.mutable_trainer_joined()
             ->mutable_trainer()
             ->mutable_lineage()
             ->set_id("short");
       }},
      {"trainer.lineage.committed", 2,
       [](P& p) {
         p.mutable_trainer_joined()
             ->mutable_trainer()
             ->mutable_lineage()
             ->set_committed(~0ull);
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
      {"mask_vote.moved", 4,
       [](P& p) { p.mutable_mask_vote()->set_moved(std::string(201, 'm')); }},
      {"mask_vote.moved", 4,
       [](P& p) { p.mutable_mask_vote()->set_moved("fc.weight\x1b[2J"); }},
      {"mask_vote.changed_step", 4,
       [](P& p) { p.mutable_mask_vote()->set_changed_step(~0ull); }},
      {"keep_by_parameter.mask_digest", 6,
       [](P& p) {
         p.mutable_step_report()
             ->mutable_keep_by_parameter()
             ->clear_mask_digest();
       }},
      {"keep_by_parameter.parameters (their number)", 6,
       [](P& p) {
         auto& keep = *p.mutable_step_report()->mutable_keep_by_parameter();
         for (size_t i = 0; i < kMaxKeepParameters; ++i) keep.add_parameters();
       }},
      {"keep_by_parameter.parameters.name", 6,
       [](P& p) {
         p.mutable_step_report()
             ->mutable_keep_by_parameter()
             ->mutable_parameters(0)
             ->set_name("fc\n");
       }},
      {"keep_by_parameter of fc.weight keeps 12 of 11", 6,
       [](P& p) {
         p.mutable_step_report()
             ->mutable_keep_by_parameter()
             ->mutable_parameters(0)
             ->set_elements(11);
       }},
      {"keep_by_parameter.others keeps 18 of 17", 6,
       [](P& p) {
         p.mutable_step_report()
             ->mutable_keep_by_parameter()
             ->set_others_elements(17);
       }},
      {"step_report.failed_by_cause", 6,
       [](P& p) {
         for (int i = 0; i < kMaxCauses; ++i) {
           p.mutable_step_report()->add_failed_by_cause();
         }
       }},
      {"step_report.waits_for", 6,
       [](P& p) {
         p.mutable_step_report()->set_waits_for(std::string(201, 'w'));
       }},
      {"step_report.waits_for", 6,
       [](P& p) { p.mutable_step_report()->set_waits_for("rank 1\x1b[2J"); }},
      {"step_report.first_compacted_step", 6,
       [](P& p) { p.mutable_step_report()->set_first_compacted_step(~0ull); }},
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

TEST(ProtoAgent, sec_limits_RanksOfAJob) {
  ExpectLimit(2, "trainer.world_size", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_joined()->mutable_trainer()->set_world_size(kMaxRanks +
                                                                  above);
  });
  ExpectLimit(3, "trainer_left.rank", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_left()->set_rank(kMaxRanks - 1 + above);
  });
}

TEST(ProtoAgent, sec_limits_Models) {
  ExpectLimit(2, "group.model", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_joined()->mutable_group()->set_model(kMaxModels - 1 +
                                                           above);
  });
}

TEST(ProtoAgent, sec_limits_ElementsOfAModel) {
  ExpectLimit(2, "trainer.elements", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_joined()->mutable_trainer()->set_elements(kMaxElements +
                                                                above);
  });
  ExpectLimit(2, "declared.elements", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_joined()
        ->mutable_trainer()
        ->mutable_declared()
        ->set_elements(kMaxElements + above);
  });
}

TEST(ProtoAgent, sec_limits_StepsOfAnOnset) {
  ExpectLimit(2, "activate_every", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_joined()
        ->mutable_trainer()
        ->mutable_onset()
        ->set_activate_every(kMaxOnset + above);
  });
  ExpectLimit(2, "pin_from", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_joined()
        ->mutable_trainer()
        ->mutable_onset()
        ->set_pin_from(kMaxOnset + above);
  });
}

TEST(ProtoAgent, APinWhoseModeDoesNotGoWithItsCodecIsRefused) {
  v1::AgentMessage proto = ToProto(AgentMessages()[2]);
  proto.mutable_trainer_joined()
      ->mutable_trainer()
      ->mutable_onset()
      ->set_pin_codec(v1::CODEC_FP32);
  EXPECT_THAT(FromProto(proto),
              base::StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("the pin is TERNARY fp32")));
}

TEST(ProtoAgent, sec_limits_JobName) {
  ExpectLimit(2, "group.job", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_joined()->mutable_group()->set_job(
        std::string(kMaxNameLength + above, 'a'));
  });
  for (const char* name : {"", "A", "-a", "a-", "a/b", "a b", "<b>", "a\n"}) {
    EXPECT_FALSE(CheckName("job", name).ok()) << name;
  }
}

TEST(ProtoAgent, sec_limits_Texts) {
  ExpectLimit(3, "trainer_left.reason", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_left()->set_reason(
        std::string(kMaxTextLength + above, 'r'));
  });
}

TEST(ProtoAgent, sec_limits_AgentsThatOneCouldNotReach) {
  ExpectLimit(3, "trainer_left.unreached", [](v1::AgentMessage& p, bool above) {
    v1::TrainerLeft& left = *p.mutable_trainer_left();
    while (left.unreached_size() < kMaxAgents + above) {
      left.add_unreached("c");
    }
  });
  ExpectLimit(3, "trainer_left.unreached", [](v1::AgentMessage& p, bool above) {
    p.mutable_trainer_left()->add_unreached(
        std::string(kMaxNameLength + above, 'c'));
  });
}

TEST(ProtoAgent, sec_limits_LinksAndNoiseOfAReport) {
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

}  // namespace
}  // namespace pactrain::protocol
