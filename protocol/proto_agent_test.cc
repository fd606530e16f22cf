// What the coordinator takes from an agent.
#include <cmath>
#include <functional>
#include <limits>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "protocol/limits.h"
#include "protocol/local_trainers.h"
#include "protocol/proto_check.h"
#include "protocol/proto_convert.h"
#include "protocol/test_messages.h"
#include "protocol/types.h"

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

v1::TrainerJoined* Here(v1::AgentMessage& p) {
  return p.mutable_local_trainers()->mutable_here(0);
}
v1::TrainerLeft* Left(v1::AgentMessage& p) {
  return p.mutable_local_trainers()->mutable_left(0);
}
v1::MaskVote* Vote(v1::AgentMessage& p) {
  return p.mutable_local_trainers()->mutable_votes(0);
}

TEST(ProtoAgent, ACauseThatANewerAgentKnowsIsLeftOut) {
  v1::AgentMessage message = ToProto(AgentMessages()[4]);
  v1::FailedAttempts& newer =
      *message.mutable_step_report()->add_failed_by_cause();
  newer.set_cause(kCauses);
  newer.set_count(9);
  ASSERT_OK_AND_ASSIGN(const AgentMessage read, FromProto(message));
  EXPECT_EQ(std::get<StepReport>(read).failed_by_cause,
            std::get<StepReport>(AgentMessages()[4]).failed_by_cause);
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
      {"audit.number", 0,
       [](P& p) { p.mutable_hello()->mutable_audit(0)->clear_number(); }},
      {"audit.hash", 0,
       [](P& p) { p.mutable_hello()->mutable_audit(1)->set_hash("short"); }},
      {"hello.audit", 0,
       [](P& p) {
         while (p.hello().audit_size() <= static_cast<int>(kMaxAuditHeads)) {
           *p.mutable_hello()->add_audit() = p.hello().audit(0);
         }
       }},
      {"audit.proof", 5,
       [](P& p) {
         p.mutable_heartbeat()->mutable_audit()->set_proof("short");
       }},
      {"hello.version", 0,
       [](P& p) { p.mutable_hello()->set_version(std::string(64, 'v')); }},
      {"hello.cluster_id", 0,
       [](P& p) { p.mutable_hello()->set_cluster_id("abc"); }},
      {"local_trainers.revision", 2,
       [](P& p) { p.mutable_local_trainers()->clear_revision(); }},
      {"step_report.step_seconds", 2,
       [](P& p) {
         p.mutable_local_trainers()->mutable_report()->set_step_seconds(-1);
       }},
      {"group.job", 2,
       [](P& p) {
         p.mutable_local_trainers()->mutable_group()->set_job("../x");
       }},
      {"group.model", 2,
       [](P& p) {
         p.mutable_local_trainers()->mutable_group()->set_model(16);
       }},
      {"trainer.world_size", 2,
       [](P& p) { Here(p)->mutable_trainer()->set_world_size(1025); }},
      {"trainer.world_size", 2,
       [](P& p) { Here(p)->mutable_trainer()->set_world_size(0); }},
      {"trainer.rank", 2,
       [](P& p) { Here(p)->mutable_trainer()->set_rank(4); }},
      {"trainer.attach_id", 2,
       [](P& p) { Here(p)->mutable_trainer()->clear_attach_id(); }},
      {"trainer.launch", 2,
       [](P& p) {
         Here(p)->mutable_trainer()->set_launch(std::string(64, 'l'));
       }},
      {"trainer.model_digest", 2,
       [](P& p) { Here(p)->mutable_trainer()->clear_model_digest(); }},
      {"trainer.model_summary", 2,
       [](P& p) {
         Here(p)->mutable_trainer()->set_model_summary(std::string(256, 's'));
       }},
      {"trainer.elements", 2,
       [](P& p) { Here(p)->mutable_trainer()->set_elements(1ull << 31); }},
      {"trainer.resume_step", 2,
       [](P& p) { Here(p)->mutable_trainer()->set_resume_step(~0ull); }},
      {"trainer.lineage.id", 2,
       [](P& p) {
         Here(p)->mutable_trainer()->mutable_lineage()->set_id("short");
       }},
      {"trainer.lineage.committed", 2,
       [](P& p) {
         Here(p)->mutable_trainer()->mutable_lineage()->set_committed(~0ull);
       }},
      {"trainer_left.rank", 2, [](P& p) { Left(p)->set_rank(1024); }},
      {"trainer_left.reason", 2,
       [](P& p) { Left(p)->set_reason(std::string(4097, 'r')); }},
      {"mask_vote.settle_steps", 2, [](P& p) { Vote(p)->set_settle_steps(0); }},
      {"mask_vote.kept_elements", 2,
       [](P& p) { Vote(p)->set_kept_elements(101); }},
      {"mask_vote.elements", 2, [](P& p) { Vote(p)->set_elements(~0ull); }},
      {"mask_vote.mask_digest", 2, [](P& p) { Vote(p)->set_mask_digest("x"); }},
      {"mask_vote.layout_digest", 2,
       [](P& p) { Vote(p)->clear_layout_digest(); }},
      {"mask_vote.moved", 2,
       [](P& p) { Vote(p)->set_moved(std::string(201, 'm')); }},
      {"mask_vote.moved", 2,
       [](P& p) { Vote(p)->set_moved("fc.weight\x1b[2J"); }},
      {"mask_vote.changed_step", 2,
       [](P& p) { Vote(p)->set_changed_step(~0ull); }},
      {"mask_vote.after_steps", 2,
       [](P& p) { Vote(p)->set_after_steps(~0ull); }},
      {"keep_by_parameter.mask_digest", 4,
       [](P& p) {
         p.mutable_step_report()
             ->mutable_keep_by_parameter()
             ->clear_mask_digest();
       }},
      {"keep_by_parameter.parameters (their number)", 4,
       [](P& p) {
         auto& keep = *p.mutable_step_report()->mutable_keep_by_parameter();
         for (size_t i = 0; i < kMaxKeepParameters; ++i) keep.add_parameters();
       }},
      {"keep_by_parameter.parameters.name", 4,
       [](P& p) {
         p.mutable_step_report()
             ->mutable_keep_by_parameter()
             ->mutable_parameters(0)
             ->set_name("fc\n");
       }},
      {"keep_by_parameter of fc.weight keeps 12 of 11", 4,
       [](P& p) {
         p.mutable_step_report()
             ->mutable_keep_by_parameter()
             ->mutable_parameters(0)
             ->set_elements(11);
       }},
      {"keep_by_parameter.others keeps 18 of 17", 4,
       [](P& p) {
         p.mutable_step_report()
             ->mutable_keep_by_parameter()
             ->set_others_elements(17);
       }},
      {"device_path.name", 4,
       [](P& p) {
         p.mutable_step_report()->mutable_device_path()->set_name("nccl\n");
       }},
      {"device_path.reason", 4,
       [](P& p) {
         p.mutable_step_report()->mutable_device_path()->set_reason(
             std::string(201, 'r'));
       }},
      {"step_report.failed_by_cause", 4,
       [](P& p) {
         for (int i = 0; i < kMaxCauses; ++i) {
           p.mutable_step_report()->add_failed_by_cause();
         }
       }},
      {"step_report.waits_for", 4,
       [](P& p) {
         p.mutable_step_report()->set_waits_for(std::string(201, 'w'));
       }},
      {"step_report.waits_for", 4,
       [](P& p) { p.mutable_step_report()->set_waits_for("rank 1\x1b[2J"); }},
      {"step_report.first_compacted_step", 4,
       [](P& p) { p.mutable_step_report()->set_first_compacted_step(~0ull); }},
      {"prepare_answer.reason", 3,
       [](P& p) {
         p.mutable_prepare_answer()->set_reason(std::string(4097, 'r'));
       }},
      {"step_report.step_seconds", 4,
       [](P& p) { p.mutable_step_report()->set_step_seconds(-1); }},
      {"goodput", 4,
       [](P& p) {
         p.mutable_step_report()
             ->mutable_links(0)
             ->set_goodput_bytes_per_second(
                 std::numeric_limits<double>::infinity());
       }},
      {"rtt_seconds", 4,
       [](P& p) {
         p.mutable_step_report()->mutable_links(0)->set_rtt_seconds(
             std::nan(""));
       }},
      {"peer_site", 4,
       [](P& p) {
         p.mutable_step_report()->mutable_links(0)->clear_peer_site();
       }},
      {"step_report.noise.error", 4,
       [](P& p) { p.mutable_step_report()->mutable_noise(0)->set_error(-1); }},
      {"step_report.noise.clip", 4,
       [](P& p) { p.mutable_step_report()->mutable_noise(0)->set_clip(-1); }},
      {"step_report.links", 4,
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
    Here(p)->mutable_trainer()->set_world_size(kMaxRanks + above);
  });
  ExpectLimit(2, "trainer_left.rank", [](v1::AgentMessage& p, bool above) {
    Left(p)->set_rank(kMaxRanks - 1 + above);
  });
}

TEST(ProtoAgent, sec_limits_Models) {
  ExpectLimit(2, "group.model", [](v1::AgentMessage& p, bool above) {
    p.mutable_local_trainers()->mutable_group()->set_model(kMaxModels - 1 +
                                                           above);
  });
}

TEST(ProtoAgent, sec_limits_ElementsOfAModel) {
  ExpectLimit(2, "trainer.elements", [](v1::AgentMessage& p, bool above) {
    Here(p)->mutable_trainer()->set_elements(kMaxElements + above);
  });
  ExpectLimit(2, "declared.elements", [](v1::AgentMessage& p, bool above) {
    Here(p)->mutable_trainer()->mutable_declared()->set_elements(kMaxElements +
                                                                 above);
  });
}

TEST(ProtoAgent, sec_limits_StepsOfAnOnset) {
  ExpectLimit(2, "activate_every", [](v1::AgentMessage& p, bool above) {
    Here(p)->mutable_trainer()->mutable_onset()->set_activate_every(kMaxOnset +
                                                                    above);
  });
  ExpectLimit(2, "pin_from", [](v1::AgentMessage& p, bool above) {
    Here(p)->mutable_trainer()->mutable_onset()->set_pin_from(kMaxOnset +
                                                              above);
  });
}

TEST(ProtoAgent, APinWhoseModeDoesNotGoWithItsCodecIsRefused) {
  v1::AgentMessage proto = ToProto(AgentMessages()[2]);
  Here(proto)->mutable_trainer()->mutable_onset()->set_pin_codec(
      v1::CODEC_FP32);
  EXPECT_THAT(FromProto(proto),
              base::StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr("the pin is TERNARY fp32")));
}

TEST(ProtoAgent, sec_limits_JobName) {
  ExpectLimit(2, "group.job", [](v1::AgentMessage& p, bool above) {
    p.mutable_local_trainers()->mutable_group()->set_job(
        std::string(kMaxNameLength + above, 'a'));
  });
  for (const char* name : {"", "A", "-a", "a-", "a/b", "a b", "<b>", "a\n"}) {
    EXPECT_FALSE(CheckName("job", name).ok()) << name;
  }
}

TEST(ProtoAgent, sec_limits_Texts) {
  ExpectLimit(2, "trainer_left.reason", [](v1::AgentMessage& p, bool above) {
    Left(p)->set_reason(std::string(kMaxTextLength + above, 'r'));
  });
}

TEST(ProtoAgent, sec_limits_AgentsThatOneCouldNotReach) {
  ExpectLimit(2, "trainer_left.unreached", [](v1::AgentMessage& p, bool above) {
    v1::TrainerLeft& left = *Left(p);
    while (left.unreached_size() < kMaxAgents + above) {
      left.add_unreached("c");
    }
  });
  ExpectLimit(2, "trainer_left.unreached", [](v1::AgentMessage& p, bool above) {
    Left(p)->add_unreached(std::string(kMaxNameLength + above, 'c'));
  });
}

TEST(ProtoAgent, sec_limits_TrainersOfOneGroupAndAgent) {
  ExpectLimit(2, "local_trainers.here", [](v1::AgentMessage& p, bool above) {
    while (p.local_trainers().here_size() <
           static_cast<int>(kMaxLocalTrainers) + above) {
      const v1::TrainerJoined first = *Here(p);
      *p.mutable_local_trainers()->add_here() = first;
    }
  });
  ExpectLimit(2, "local_trainers.left", [](v1::AgentMessage& p, bool above) {
    while (p.local_trainers().left_size() <
           2 * static_cast<int>(kMaxLocalTrainers) + above) {
      const v1::TrainerLeft first = *Left(p);
      *p.mutable_local_trainers()->add_left() = first;
    }
  });
  ExpectLimit(2, "local_trainers.votes", [](v1::AgentMessage& p, bool above) {
    while (p.local_trainers().votes_size() <
           static_cast<int>(kMaxLocalTrainers) + above) {
      const v1::MaskVote first = *Vote(p);
      *p.mutable_local_trainers()->add_votes() = first;
    }
  });
}

TEST(ProtoAgent, sec_limits_ParametersThatHaveANameAndCausesOfOneReport) {
  ExpectLimit(
      4, "keep_by_parameter.parameters", [](v1::AgentMessage& p, bool above) {
        auto& keep = *p.mutable_step_report()->mutable_keep_by_parameter();
        while (keep.parameters_size() <
               static_cast<int>(kMaxKeepParameters) + above) {
          const auto first = keep.parameters(0);
          *keep.add_parameters() = first;
        }
      });
  ExpectLimit(4, "step_report.failed_by_cause",
              [](v1::AgentMessage& p, bool above) {
                v1::StepReport& report = *p.mutable_step_report();
                while (report.failed_by_cause_size() < kMaxCauses + above) {
                  report.add_failed_by_cause();
                }
              });
}

// All texts are as long as they may be.
TEST(ProtoAgent, sec_limits_TheLargestLocalTrainersFitIntoOneMessage) {
  LocalTrainers most = std::get<LocalTrainers>(AgentMessages()[2]);
  TrainerJoined joined = most.here[0];
  joined.trainer.launch.assign(kMaxNameLength, 'l');
  joined.trainer.model_summary.assign(kMaxSummaryLength, 's');
  TrainerLeft left = most.left[0];
  left.reason.assign(kMaxTextLength, 'r');
  left.unreached.clear();
  MaskVote vote = most.votes[0];
  vote.moved.assign(kMaxMoved, 'm');
  most = {most.group, ~uint64_t{0}, {}, {}, {}, most.report};
  for (uint64_t i = 0; i < 2 * kMaxLocalTrainers; ++i) {
    left.attach_id = {i + 1, 1};
    left.may_return = false;
    Add(left, most);
    EXPECT_TRUE(HasRoom(most));
  }
  for (uint64_t i = 0; i < kMaxLocalTrainers; ++i) {
    joined.trainer.attach_id = {1000 + i, ~uint64_t{0}};
    EXPECT_TRUE(HasRoom(most));
    Add(joined, most);
    vote.rank = i;
    Add(vote, most);
  }
  EXPECT_FALSE(HasRoom(most));
  EXPECT_EQ(most.left.size(), kMaxLocalTrainers);
  EXPECT_EQ(most.left[0].reason.size(), kMaxReasonOfLeft);
  const v1::AgentMessage proto = ToProto(AgentMessage(most));
  EXPECT_LT(proto.ByteSizeLong(), kMaxControlMessage - 100'000);
  ASSERT_OK_AND_ASSIGN(const AgentMessage back, FromProto(proto));
  EXPECT_EQ(std::get<LocalTrainers>(back), most);
}

// What an agent of the release before says.
TEST(ProtoAgent, AnOlderAgentSaysWhatHasChanged) {
  const v1::AgentMessage now = ToProto(AgentMessages()[2]);
  const LocalTrainers local = std::get<LocalTrainers>(AgentMessages()[2]);
  v1::AgentMessage joined, left, vote;
  *joined.mutable_trainer_joined() = now.local_trainers().here(0);
  *left.mutable_trainer_left() = now.local_trainers().left(0);
  *vote.mutable_mask_vote() = now.local_trainers().votes(0);
  *joined.mutable_trainer_joined()->mutable_group() =
      *left.mutable_trainer_left()->mutable_group() =
          *vote.mutable_mask_vote()->mutable_group() = ToProto(kGroup);
  const LocalTrainers kWant[] = {{kGroup, 0, local.here, {}, {}},
                                 {kGroup, 0, {}, local.left, {}},
                                 {kGroup, 0, {}, {}, local.votes}};
  const v1::AgentMessage* const kSaid[] = {&joined, &left, &vote};
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const AgentMessage read, FromProto(*kSaid[i]));
    EXPECT_EQ(std::get<LocalTrainers>(read), kWant[i]) << i;
  }
}

TEST(ProtoAgent, sec_limits_LinksAndNoiseOfAReport) {
  ExpectLimit(4, "step_report.links", [](v1::AgentMessage& p, bool above) {
    v1::StepReport& report = *p.mutable_step_report();
    while (report.links_size() < kMaxSites + above) {
      *report.add_links() = v1::StepReport::Link(report.links(0));
    }
  });
  ExpectLimit(4, "step_report.noise", [](v1::AgentMessage& p, bool above) {
    v1::StepReport& report = *p.mutable_step_report();
    while (report.noise_size() < static_cast<int>(kMaxNoiseSamples) + above) {
      *report.add_noise() = v1::StepReport::Noise(report.noise(0));
    }
  });
}

}  // namespace
}  // namespace pactrain::protocol
