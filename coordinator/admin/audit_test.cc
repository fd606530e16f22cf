// The audit log from the event to what pactrain-admin says of it.
#include "coordinator/admin/audit.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/log_capture.h"
#include "base/status_matchers.h"
#include "base/tls/test_certs.h"
#include "coordinator/admin/run.h"
#include "coordinator/rpc/test_server.h"
#include "coordinator/store/sqlite.h"
#include "protocol/proto_convert.h"
#include "protocol/test_messages.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(AuditText, HasNoControlCharacters) {
  v1::AuditLine line;
  line.set_number(1);
  line.set_what("a\n2  forged\x1b[2J");
  EXPECT_THAT(AuditText(line), HasSubstr("a\\x0a2  forged\\x1b[2J\n"));
}

class AuditTest : public ServerFixture {
 protected:
  void SetUp() override { StartAnew(); }
  void StartAnew() {
    Start(ca_.Issue("coordinator", "spiffe://pactrain/coordinator"));
  }
  AdminClient Client(const std::string& role) const {
    return AdminClient({server_->address().ToString(),
                        ca_.Issue(absl::StrReplaceAll(role, {{"/", "-"}}),
                                  absl::StrCat("spiffe://pactrain/", role))});
  }
  // What `pactrain-admin audit` writes; how it ends in `status`.
  std::string Audit(absl::Status* status, const std::string& role = "reader",
                    Command command = {}) {
    command.name = "audit";
    AdminClient client = Client(role);
    std::ostringstream out, err;
    *status = coordinator::Run(command, client, out, err);
    return out.str();
  }
  // While nobody has the journal open.
  void Execute(const std::string& sql) {
    ASSERT_OK_AND_ASSIGN(auto database,
                         Database::Open(state_dir() + "/journal.db"));
    ASSERT_OK(database->Execute(sql));
  }
  // The same of what agents keep; also of those of these files.
  std::string Verify(absl::Status* status,
                     const std::vector<std::string>& files = {}) {
    Command command;
    command.verify = true;
    command.witness_files = files;
    return Audit(status, "reader", command);
  }
  // Lines after that one are no more; the log says that this is its end.
  void CutAfter(int line) {
    Execute(absl::StrCat("DELETE FROM audit WHERE number>", line,
                         "; UPDATE audit_ends SET number=", line,
                         ", hash=(SELECT hash FROM audit WHERE number=", line,
                         ") WHERE name='newest'"));
  }
  // Agent "a" comes back with what it kept.
  void ComeBack() {
    const auto context = MakeContext();
    const auto stub = v1::Coordinator::NewStub(
        ChannelOf(ca_.Issue("a", "spiffe://pactrain/agent/a")));
    const auto stream = stub->AgentStream(context.get());
    stream->Write(protocol::ToProto(protocol::AgentMessage(protocol::AgentHello{
        "a", {1, 1}, "x", "127.0.0.1:9", "t", "", "", {}, kept_})));
    v1::CoordinatorMessage message;
    while (stream->Read(&message) && !message.has_welcome()) {
    }
    Keep(message);
    stream->WritesDone();
    while (stream->Read(&message)) {
    }
    stream->Finish();
  }
  // Where the message says that the log ends.
  void Keep(const v1::CoordinatorMessage& message) {
    const v1::HistoryMark& mark =
        message.has_welcome() ? message.welcome().history() : message.history();
    if (!mark.has_audit()) return;
    ASSERT_OK_AND_ASSIGN(const protocol::AuditHead head,
                         protocol::FromProto(mark.audit()));
    protocol::KeepHead(head, kept_);
  }
  // A job of one rank at agent "a" that is pinned, and ends.
  void Train(uint64_t run = 1) {
    const protocol::Digest attach = {1, run};
    const auto context = MakeContext();
    const auto stub = v1::Coordinator::NewStub(
        ChannelOf(ca_.Issue("a", "spiffe://pactrain/agent/a")));
    const auto stream = stub->AgentStream(context.get());
    const auto say = [&](const protocol::AgentMessage& message) {
      stream->Write(protocol::ToProto(message));
    };
    // Reads on to a message of this kind.
    const auto await = [&](v1::CoordinatorMessage::KindCase kind) {
      v1::CoordinatorMessage message;
      while (stream->Read(&message)) {
        Keep(message);
        if (message.kind_case() == kind) return true;
      }
      return false;
    };
    say(protocol::AgentHello{"a", {1, 1}, "x", "127.0.0.1:9", "t", ""});
    const protocol::Trainer trainer{
        0, 1, attach, absl::StrCat("run-", run), {2, 2}, "a net", 10, 0};
    protocol::TrainersOfAgent local;
    say(local.With(protocol::TrainerJoined{{"myjob", 0}, trainer, 0}));
    ASSERT_TRUE(await(v1::CoordinatorMessage::kStartGeneration));
    say(local.With(protocol::MaskVote{
        {"myjob", 0}, run, 0, {3, 3}, {4, 4}, 1, 1, true, 30, 100}));
    ASSERT_TRUE(await(v1::CoordinatorMessage::kPrepare));
    AdminClient client = Client("operator");
    v1::Group group;
    group.set_job("myjob");
    v1::Pin pin;
    pin.set_mode(v1::MODE_FULL);
    pin.set_codec(v1::CODEC_BF16);
    ASSERT_OK(client.SetPin(group, pin));
    ASSERT_OK(client.SetPin(group, std::nullopt));
    say(local.With(protocol::TrainerLeft{
        {"myjob", 0}, 0, attach, "killed by signal 9", false, false}));
    stream->WritesDone();
    v1::CoordinatorMessage rest;
    while (stream->Read(&rest)) Keep(rest);
    stream->Finish();
  }

  base::LogCapture log_;
  const base::TestCa ca_{folder_};
  std::vector<protocol::AuditHead> kept_;  // By agent "a".
};

TEST_F(AuditTest, sec_audit_complete) {
  Train();
  // Refusals: of a call, of an agent's name, of a handshake.
  v1::Group group;
  group.set_job("myjob");
  EXPECT_FALSE(Client("reader").SetPin(group, std::nullopt).ok());
  EXPECT_FALSE(
      AdminClient({server_->address().ToString(), {}}).ListJobs().ok());
  EXPECT_TRUE(log_.WaitFor("TLS handshake"));
  driver_->Tick();
  absl::Status status;
  const std::string text = Audit(&status);
  EXPECT_OK(status);
  for (const char* line :
       {"agent connected  spiffe://pactrain/agent/a #[0-9A-F]+  agent a of "
        "site x at 127.0.0.1:9\n",
        "generation formed  coordinator  job myjob  generation 1 of 1 rank on "
        "1 agent, launch 'run-1'",
        "join  spiffe://pactrain/agent/a #[0-9A-F]+  job myjob  agent a of "
        "site x with ranks 0, generation 1\n",
        "decision  coordinator  job myjob  decision 2: COMPACTED fp32, mask "
        "set ",
        "pin  spiffe://pactrain/operator #[0-9A-F]+  job myjob  FULL bf16\n",
        "pin  spiffe://pactrain/operator #[0-9A-F]+  job myjob  unpinned\n",
        "leave  spiffe://pactrain/agent/a #[0-9A-F]+  job myjob  rank 0 of "
        "generation 1: killed by signal 9\n",
        "generation ended  coordinator  job myjob  generation 1: ",
        "call refused  spiffe://pactrain/reader #[0-9A-F]+  SetPin from "
        "127.0.0.1: this is for an operator",
        "connection refused  stranger  from 127.0.0.1: TLS handshake: it "
        "speaks "
        "something else than TLS",
        "lines, chain whole; newest hash [0-9a-f]+\n"}) {
    EXPECT_THAT(text, ContainsRegex(line));
  }
}

TEST_F(AuditTest, sec_AuditIsForReadersAndOperators) {
  absl::Status status;
  Audit(&status, "operator");
  EXPECT_OK(status);
  EXPECT_EQ(Audit(&status, "agent/a"), "");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kPermissionDenied,
                               HasSubstr("for a reader or an operator")));
}

TEST_F(AuditTest, TheChainGoesOnAfterARestart) {
  Train();
  Stop();
  StartAnew();
  Train(2);
  absl::Status status;
  const std::string text = Audit(&status);
  EXPECT_OK(status);
  EXPECT_THAT(text, HasSubstr("generation 2 of 1 rank"));
}

TEST_F(AuditTest, sec_audit_chain) {
  Train();
  Stop();
  const std::pair<const char*, const char*> changes[] = {
      {"UPDATE audit SET who='spiffe://pactrain/agent/b' WHERE number=4",
       "line 4 is not what was written"},
      {"UPDATE audit SET who='spiffe://pactrain/agent/a' WHERE number=4; "
       "UPDATE audit SET what=what||why, why='' WHERE number=3",
       "line 3 is not what was written"},
      {"DELETE FROM audit WHERE number=2", "line 2 is missing, 3 comes next"},
      {"DELETE FROM audit WHERE number=1", "line 1 is missing, 3 comes next"},
      {"DELETE FROM audit", "line 1 is missing, "}};
  for (const auto& [sql, words] : changes) {
    Execute(sql);
    StartAnew();
    absl::Status status;
    const std::string text = Audit(&status);
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(words)));
    EXPECT_THAT(text, Not(HasSubstr("chain whole")));
    // Also where nobody asks, and no agent was told.
    EXPECT_TRUE(
        log_.WaitFor(absl::StrCat("THE AUDIT LOG WAS CHANGED: ", words)))
        << log_.text();
    EXPECT_EQ(driver_->Snapshot().audit_contradicted, 1u);
    Stop();
  }
}

TEST_F(AuditTest, sec_audit_LinesAreNotCutBeforeTheirTime) {
  Train();
  Stop();
  Execute(
      "UPDATE audit_ends SET number=3, hash=(SELECT hash FROM audit WHERE "
      "number=3) WHERE name='cut'; DELETE FROM audit WHERE number<=3");
  StartAnew();
  absl::Status status;
  Audit(&status);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                               HasSubstr("lines 1 to 3 are missing")));
  EXPECT_TRUE(
      log_.WaitFor("THE AUDIT LOG WAS CHANGED: lines 1 to 3 are missing"));
}

TEST_F(AuditTest, sec_audit_ALineThatIsTakenOutMeanwhileIsMissed) {
  Train();
  ComeBack();
  ASSERT_EQ(kept_.size(), 1u);
  Execute(absl::StrCat("DELETE FROM audit WHERE number=", kept_[0].number));
  const uint64_t gone = kept_[0].number;
  ComeBack();
  EXPECT_TRUE(log_.WaitFor(absl::StrCat("THE AUDIT LOG WAS CHANGED: line ",
                                        gone, " is missing: agent a was told")))
      << log_.text();
}

TEST_F(AuditTest, sec_audit_TheFirstLineThatWasCutIsNamedByAWitness) {
  Train();
  absl::Status status;
  ComeBack();
  EXPECT_THAT(Verify(&status),
              ContainsRegex("as agents were told: a .to line"));
  EXPECT_OK(status);
  ASSERT_EQ(kept_.size(), 1u);
  const uint64_t last = kept_[0].number;
  ASSERT_GT(last, 5u);
  Stop();
  CutAfter(4);
  StartAnew();
  // Nobody who has seen more is there.
  EXPECT_THAT(Audit(&status), HasSubstr("chain whole"));
  EXPECT_OK(status);
  ComeBack();
  const std::string missing =
      absl::StrCat("line 5 is missing, and all to ", last,
                   ": agent a was told of line ", last, " in term 1");
  Verify(&status);
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(missing)));
  EXPECT_TRUE(log_.WaitFor(absl::StrCat(
      "THE AUDIT LOG WAS CHANGED: lines 5 to ", last, " are missing")));
  EXPECT_THAT(Audit(&status),
              ContainsRegex("audit log changed  spiffe://pactrain/agent/a "));
  // Also once it is longer than it was, in a later term.
  Train(2);
  Stop();
  StartAnew();
  ComeBack();
  Verify(&status);
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(missing)));
  // And with what the agent has on its own disk alone.
  Stop();
  StartAnew();
  const std::string file = folder_ + "/agent.sock.audit";
  std::ofstream(file) << protocol::WriteHeads({"a", "", kept_});
  Verify(&status, {file});
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(missing)));
}

TEST_F(AuditTest, sec_audit_AChainThatWasMadeAnewIsNotTheOneThatWasSeen) {
  Train();
  ComeBack();
  Stop();
  std::string state = state_dir();
  std::filesystem::rename(state + "/journal.db", state + "/was.db");
  StartAnew();
  Train();
  Stop();
  // The same secret and cluster, another log of the same length.
  Execute("ATTACH '" + state +
          "/was.db' AS was; "
          "UPDATE meta SET value=(SELECT value FROM was.meta m WHERE "
          "m.key=meta.key) WHERE key IN ('cluster_id', 'cluster_secret')");
  StartAnew();
  ComeBack();
  absl::Status status;
  Verify(&status);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                               HasSubstr("the audit log was changed: line ")));
}

}  // namespace
}  // namespace pactrain::coordinator
