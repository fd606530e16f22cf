// The C ABI against a fake agent on a real socket: steps that fail, agents that
// die or fall silent, processes that fork or exit.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <future>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "trainer/test_session.h"

namespace pactrain::trainer {
namespace {

using ::testing::HasSubstr;
using wire::Code;
using SessionEndTest = TestSession;

TEST_F(SessionEndTest, StepNotAppliedLeavesTheSessionUsable) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    a.ReceiveStep();
    a.SendFailed(7, Code::kStepNotApplied, false,
                 "bucket 0: rank 1 has 5 elements.\nUse one bucket cap.");
    const auto submits = a.ReceiveStep();
    EXPECT_EQ(submits[0].step, 8u);
    a.SendCommitted(submits.back(), Full());
  });
  Attach(agent);
  const std::vector<float> data = {1};
  ASSERT_EQ(Submit(0, data, true), PT_OK);
  EXPECT_EQ(pt_wait(session_, &step_), PT_STEP_NOT_APPLIED);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("Use one bucket cap."));
  EXPECT_EQ(pt_is_final(session_), 0);
  ASSERT_EQ(Submit(0, data, true), PT_OK);
  EXPECT_EQ(pt_wait(session_, &step_), PT_OK);
}

TEST_F(SessionEndTest, FinalFailureEndsTheSession) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    a.ReceiveStep();
    a.SendFailed(7, Code::kResyncRequired, true, "agent b is gone.\nReload.");
  });
  Attach(agent);
  const std::vector<float> data = {1};
  ASSERT_EQ(Submit(0, data, true), PT_OK);
  EXPECT_EQ(pt_wait(session_, &step_), PT_RESYNC_REQUIRED);
  EXPECT_EQ(pt_is_final(session_), 1);
  EXPECT_EQ(Submit(0, data, true), PT_RESYNC_REQUIRED);
  EXPECT_EQ(pt_wait(session_, &step_), PT_RESYNC_REQUIRED);
}

TEST_F(SessionEndTest, DeathOfTheAgentInAStepIsATypedErrorAtOnce) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    a.Receive<wire::Submit>();
    a.Hangup();
  });
  Attach(agent);
  const std::vector<float> data = {1};
  ASSERT_EQ(Submit(0, data, false), PT_OK);
  EXPECT_EQ(pt_wait(session_, &step_), PT_AGENT_UNRESPONSIVE);
  EXPECT_THAT(pt_error_text(session_), HasSubstr(agent.address()));
  EXPECT_EQ(pt_is_final(session_), 1);
}

TEST_F(SessionEndTest, DeathWithASubmitUnreadIsTheSame) {
  std::promise<void> submitted;
  FakeAgent agent([&](FakeAgent& a) {
    a.Attach();
    submitted.get_future().wait();
    a.SendFailed(7, Code::kStepNotApplied, false, "first this.");
    a.Hangup();  // The socket is reset.
  });
  Attach(agent);
  const std::vector<float> data = {1};
  ASSERT_EQ(Submit(0, data, true), PT_OK);
  submitted.set_value();
  EXPECT_EQ(pt_wait(session_, &step_), PT_STEP_NOT_APPLIED);
  // Submitting may or may not notice yet; the step cannot end well.
  Submit(0, data, true);
  EXPECT_EQ(pt_wait(session_, &step_), PT_AGENT_UNRESPONSIVE);
}

TEST_F(SessionEndTest, DeathOfTheAgentBetweenStepsShowsAtTheNextSubmit) {
  std::promise<void> dead;
  FakeAgent agent([&](FakeAgent& a) {
    a.Attach();
    a.Hangup();
    dead.set_value();
  });
  Attach(agent);
  dead.get_future().wait();
  const std::vector<float> data = {1};
  EXPECT_EQ(Submit(0, data, true), PT_AGENT_UNRESPONSIVE);
  EXPECT_EQ(pt_wait(session_, &step_), PT_AGENT_UNRESPONSIVE);
}

TEST_F(SessionEndTest, LastWordsOfTheAgentAreTheError) {
  std::promise<void> dead;
  FakeAgent agent([&](FakeAgent& a) {
    a.Attach();
    a.Receive<wire::Vote>();
    a.SendFailed(~0ull, Code::kResyncRequired, true, "site b left.\nReload.");
    a.Hangup();
    dead.set_value();
  });
  Attach(agent);
  ASSERT_EQ(pt_vote(session_, kLayout, kMask, 1, 1, 1, 50, 100, nullptr),
            PT_OK);
  dead.get_future().wait();
  const std::vector<float> data = {1};
  EXPECT_EQ(Submit(0, data, true), PT_RESYNC_REQUIRED);
  EXPECT_THAT(pt_error_text(session_), HasSubstr("site b left"));
}

TEST_F(SessionEndTest, SilentAgentEndsAStepWithinTheBound) {
  std::promise<void> done;
  FakeAgent agent([&](FakeAgent& a) {
    wire::Attached attached = FakeAgent::AttachedFor(a.Accept());
    attached.step_deadline_ms = 1;
    a.SendAttached(attached);
    done.get_future().wait();
  });
  Attach(agent);
  const std::vector<float> data = {1};
  ASSERT_EQ(Submit(0, data, false), PT_OK);
  std::thread waiter([&] {
    EXPECT_EQ(pt_wait(session_, &step_), PT_AGENT_UNRESPONSIVE);
    EXPECT_THAT(pt_error_text(session_), HasSubstr("no word from the agent"));
  });
  EXPECT_EQ(Submit(1, data, true), PT_OK);
  waiter.join();
  done.set_value();
}

TEST_F(SessionEndTest, ForkedChildDoesNotDetachItsParent) {
  FakeAgent agent([](FakeAgent& a) {
    a.Attach();
    const auto submits = a.ReceiveStep();
    a.SendCommitted(submits.back(), Full());
  });
  Attach(agent);
  float data = 1;
  const pt_part part = {&data, 1};
  const pid_t child = fork();
  if (child == 0) {
    const int refused = pt_submit(session_, 0, &part, 1, &data, PT_FLOAT32,
                                  PT_SUM, kBucketLayout, 1, nullptr);
    pt_close(session_);
    _exit(refused == PT_INVALID_ARGUMENT ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(pt_submit(session_, 0, &part, 1, &data, PT_FLOAT32, PT_SUM,
                      kBucketLayout, 1, nullptr),
            PT_OK);
  EXPECT_EQ(pt_wait(session_, &step_), PT_OK) << pt_error_text(session_);
}

TEST_F(SessionEndTest, AnExitStatusSaysWhetherTheRankHasLeftOrIsLost) {
  for (const int status : {0, 1}) {
    FakeAgent agent([status](FakeAgent& a) {
      a.Attach();
      if (status == 0) {
        EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
      } else {
        EXPECT_TRUE(a.AtEnd());
      }
    });
    const pid_t child = fork();
    if (child == 0) {
      Attach(agent);
      pt_close_at_exit(session_);
      exit(status);
    }
    int ended = -1;
    ASSERT_EQ(waitpid(child, &ended, 0), child);
    EXPECT_EQ(WEXITSTATUS(ended), status);
  }
}

}  // namespace
}  // namespace pactrain::trainer
