// The client against a coordinator that says what the test wants it to.
#include "coordinator/admin/admin_client.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <deque>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "coordinator/admin/run.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One call of WatchJob: these states, then this end.
struct Script {
  std::vector<v1::JobState> states;
  grpc::Status end;
};

class ScriptedWatch : public grpc::ServerWriteReactor<v1::WatchJobResponse> {
 public:
  explicit ScriptedWatch(Script script) : script_(std::move(script)) {
    OnWriteDone(true);
  }
  void OnWriteDone(bool) override {
    if (next_ == script_.states.size()) return Finish(script_.end);
    *response_.mutable_job() = script_.states[next_++];
    StartWrite(&response_);
  }
  void OnDone() override { delete this; }

 private:
  const Script script_;
  size_t next_ = 0;
  v1::WatchJobResponse response_;
};

// Answers when the caller has given up.
class MuteReactor : public grpc::ServerUnaryReactor {
 public:
  void OnCancel() override { Finish(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }
};

class ScriptedAdmin : public v1::Admin::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext*,
                                   const v1::GetJobRequest*,
                                   v1::GetJobResponse*) override {
    return new MuteReactor;
  }
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext*, const v1::WatchJobRequest*) override {
    return new ScriptedWatch(scripts.at(calls++));
  }
  std::vector<Script> scripts;
  std::atomic<size_t> calls = 0;
};

v1::JobState State(uint64_t step, const std::string& reason) {
  v1::JobState job;
  job.set_state("running");
  job.set_reason(reason);
  job.set_committed_step(step);
  job.set_committed_count(step);
  return job;
}

const grpc::Status kStopped(grpc::StatusCode::UNAVAILABLE,
                            "it is shutting down");
const grpc::Status kExpired(grpc::StatusCode::DEADLINE_EXCEEDED, "");
const grpc::Status kGone(grpc::StatusCode::NOT_FOUND, "no job 'j' is known");

class AdminClientTest : public ::testing::Test {
 protected:
  AdminClientTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&admin_);
    server_ = builder.BuildAndStart();
    options_.address = absl::StrCat("127.0.0.1:", port);
    options_.first_pause = options_.longest_pause = absl::Milliseconds(1);
  }
  // What `watch` has written when it ends, by line.
  std::vector<std::string> Watch(bool json) {
    Command command;
    command.name = "watch";
    command.json = json;
    AdminClient client(options_);
    std::ostringstream out, err;
    status_ = coordinator::Run(command, client, out, err);
    errors_ = absl::StrSplit(err.str(), '\n', absl::SkipEmpty());
    return absl::StrSplit(out.str(), '\n', absl::SkipEmpty());
  }

  ScriptedAdmin admin_;
  std::unique_ptr<grpc::Server> server_;
  AdminClient::Options options_;
  absl::Status status_;
  std::vector<std::string> errors_;
};

TEST_F(AdminClientTest, ACallWithoutAnAnswerEnds) {
  options_.call_timeout = absl::Milliseconds(50);
  EXPECT_THAT(AdminClient(options_).GetJob({}),
              base::StatusIs(absl::StatusCode::kDeadlineExceeded,
                             HasSubstr(" did not answer within 50ms")));
}

TEST_F(AdminClientTest, AWatchGoesOnWhenItsCallExpires) {
  admin_.scripts = {{{State(1, "a")}, kExpired},
                    {{State(1, "a"), State(2, "b")}, kExpired},
                    {{}, kGone}};
  EXPECT_THAT(Watch(/*json=*/false),
              ElementsAre("step 1  running  a", "step 2  running  b"));
  EXPECT_THAT(status_, base::StatusIs(absl::StatusCode::kNotFound,
                                      HasSubstr("no job 'j' is known")));
}

TEST_F(AdminClientTest, AWatchWithoutAnAnswerEnds) {
  admin_.scripts = {{{}, kExpired}};
  EXPECT_TRUE(Watch(false).empty());
  EXPECT_THAT(status_, base::StatusIs(absl::StatusCode::kDeadlineExceeded,
                                      HasSubstr("did not answer within 1m")));
}

TEST_F(AdminClientTest, AWatchOutlivesTheCoordinatorAndSaysSoOnce) {
  admin_.scripts = {
      {{State(1, "a")}, kStopped}, {{}, kStopped},         {{}, kExpired},
      {{State(1, "a")}, kExpired}, {{}, grpc::Status::OK}, {{}, kGone}};
  EXPECT_THAT(Watch(/*json=*/false),
              ElementsAre("step 1  running  a", "step 1  running  a"));
  EXPECT_THAT(
      errors_,
      ElementsAre(HasSubstr(": it is shutting down; trying again until Ctrl-C"),
                  HasSubstr(" ended the watch; trying again until Ctrl-C")));
  EXPECT_THAT(status_, base::StatusIs(absl::StatusCode::kNotFound,
                                      HasSubstr("no job 'j' is known")));
}

TEST_F(AdminClientTest, StepsAndFiguresAloneAreNoNewsButInJson) {
  v1::JobState switched = State(3, "waiting is 3.5 %");
  switched.mutable_decision()->set_version(2);
  switched.mutable_decision()->set_mode(v1::MODE_TERNARY);
  switched.mutable_decision()->set_codec(v1::CODEC_LEVELS15);
  const Script script = {
      {State(1, "waiting is 9 %"), State(2, "waiting is 12.5 %"), switched},
      kGone};
  admin_.scripts = {script, script};
  EXPECT_THAT(Watch(false),
              ElementsAre("step 1  running  waiting is 9 %",
                          "step 3  running  TERNARY 15 levels  waiting is "
                          "3.5 %"));
  EXPECT_EQ(Watch(true).size(), 3);
}

}  // namespace
}  // namespace pactrain::coordinator
