#include "coordinator/driver/driver.h"

#include <algorithm>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "protocol/limits.h"
#include "protocol/test_messages.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using protocol::EndGeneration;
using protocol::GroupWaiting;
using protocol::StartGeneration;
using protocol::Welcome;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

base::Secret SecretOf(uint8_t byte) {
  base::Secret secret;
  secret.bytes.fill(byte);
  return secret;
}

// Refuses to write while `full`; what was written is kept in `kept`.
class FakeJournal : public Journal {
 public:
  const CoordinatorState::Identity& identity() const override {
    return identity_;
  }
  const base::Secret& cluster_secret() const override { return secret; }
  const Recovered& recovered() const override { return kept; }
  absl::Status Append(const std::vector<JournalRecord>& records,
                      const std::vector<protocol::AuditEvent>& audit) override {
    ++appends;
    if (on_append) on_append();
    if (full) return absl::ResourceExhaustedError("disk full");
    for (const JournalRecord& record : records) kept.Apply(record);
    if (!records.empty()) identity_.history.Wrote();
    for (const auto& event : audit) lines.push_back(event.kind);
    return absl::OkStatus();
  }
  absl::StatusOr<protocol::AuditPage> ReadAudit(uint64_t) override {
    return protocol::AuditPage();
  }
  AuditFacts audit() const override {
    AuditFacts facts;
    facts.newest = lines.size();
    facts.hash = HashOf(facts.newest);
    facts.at_start = at_start;
    return facts;
  }
  absl::StatusOr<std::string> AuditHash(uint64_t number) override {
    return number == 0 || number > lines.size() ? "" : HashOf(number);
  }
  absl::StatusOr<std::string> Backup(const std::string& name) override {
    if (backup_fails) return absl::AlreadyExistsError("it is there already");
    return "backups/" + name;
  }

  void NextTerm() {
    ++identity_.term;
    at_start = lines.size();
  }
  // Of an older copy.
  void ForgetHistory() { identity_.history = History({}, {9, 9}); }

  bool full = false, backup_fails = false;
  std::function<void()> on_append;  // While the disk is waited for.
  base::Secret secret = SecretOf(1);
  int appends = 0;
  Recovered kept;
  std::vector<std::string> lines;  // Kinds of the audit log's.
  size_t at_start = 0;             // That were there.

 private:
  // Of another line, and of the same after another one, another.
  std::string HashOf(size_t number) const {
    std::string all;
    for (size_t i = 0; i < number; ++i) all += lines[i] + ",";
    return std::to_string(std::hash<std::string>()(all));
  }
  CoordinatorState::Identity identity_{"00112233445566778899aabbccddeeff", 1,
                                       History({}, {8, 8})};
};

int64_t Count(const std::vector<std::string>& lines, const std::string& kind) {
  return std::count(lines.begin(), lines.end(), kind);
}

class FakeStream : public Driver::Stream {
 public:
  explicit FakeStream(const FakeJournal* journal) : journal_(journal) {}
  void Send(const protocol::CoordinatorMessage& message) override {
    if (std::holds_alternative<StartGeneration>(message)) {
      // Log before tell.
      EXPECT_FALSE(journal_->kept.groups.empty());
    }
    received.push_back(message);
  }
  void Close(const absl::Status& status) override { closed = status; }
  template <typename T>
  bool Got() const {
    return std::any_of(
        received.begin(), received.end(),
        [](const auto& message) { return std::holds_alternative<T>(message); });
  }

  // Of the newest generation that was told.
  base::Secret Key() const {
    base::Secret key;
    for (const auto& message : received) {
      const auto* start = std::get_if<StartGeneration>(&message);
      if (start != nullptr) key = start->key;
    }
    return key;
  }

  std::vector<protocol::CoordinatorMessage> received;
  absl::Status closed;

 private:
  const FakeJournal* const journal_;
};

class DriverTest : public ::testing::Test {
 protected:
  DriverTest() { Restart(); }
  // The same coordinator again, from what its journal kept.
  void Restart() {
    auto driver = Driver::Create({}, &journal_, [this] { return now_; });
    EXPECT_OK(driver);
    driver_ = *std::move(driver);
  }
  // A stream of agent "a"; its trainer is rank 0 of 1.
  StreamId Connect(const protocol::HistoryMark& history = {},
                   const std::string& cluster = "",
                   const std::vector<protocol::AuditHead>& audit = {}) {
    stream_ = std::make_shared<FakeStream>(&journal_);
    const StreamId id = *driver_->Open(stream_, caller_);
    driver_->OnMessage(
        id,
        protocol::AgentHello{
            "a", {1, 1}, "x", "127.0.0.1:9", "t", cluster, "", history, audit});
    return id;
  }
  // Where the audit log ends, as the agent was told last.
  protocol::AuditHead Head() const {
    protocol::AuditHead head;
    for (const auto& message : stream_->received) {
      const auto* mark = std::get_if<protocol::HistoryMark>(&message);
      if (mark != nullptr) head = mark->audit;
    }
    return head;
  }
  template <typename T>
  void Say(StreamId id, const T& what) {
    driver_->OnMessage(id, local_.With(what));
  }
  void Join(StreamId id, const std::string& job = "job") {
    Say(id, protocol::TrainerJoined{{job, 0}, trainer_, 0});
  }

  // Its trainer left, and another one comes in its place.
  void JoinAnew(StreamId id) {
    Say(id,
        protocol::TrainerLeft{{"job", 0}, 0, trainer_.attach_id, "detached"});
    ++trainer_.attach_id.hi;
    trainer_.launch = absl::StrCat("run-", trainer_.attach_id.hi);
    Join(id);
  }

  absl::Duration now_ = absl::Seconds(1000);
  protocol::Caller caller_;  // Of the next stream.
  FakeJournal journal_;
  std::unique_ptr<Driver> driver_;
  std::shared_ptr<FakeStream> stream_;
  protocol::TrainersOfAgent local_;
  protocol::Trainer trainer_{0, 1, {2, 2}, "run-1", {3, 3}, "a network", 10, 0};
};

TEST_F(DriverTest, LogsBeforeItTells) {
  Join(Connect());
  EXPECT_TRUE(stream_->Got<Welcome>());
  EXPECT_TRUE(stream_->Got<StartGeneration>());
  EXPECT_EQ(journal_.appends, 1);
}

TEST_F(DriverTest, AGenerationsKeyIsTheSameAfterARestart) {
  Join(Connect());
  const base::Secret key = stream_->Key();
  EXPECT_FALSE(key.empty());
  journal_.NextTerm();
  Restart();
  const StreamId id = Connect();
  EXPECT_TRUE(stream_->Key().empty());
  // It missed the message, so it is told again.
  Join(id);
  EXPECT_TRUE(stream_->Key() == key);
}

TEST_F(DriverTest, EachGenerationAndEachClusterHasAKeyOfItsOwn) {
  const StreamId id = Connect();
  Join(id);
  const base::Secret first = stream_->Key();
  Join(id, "other");
  const base::Secret other_job = stream_->Key();
  EXPECT_FALSE(other_job == first);
  Say(id, protocol::TrainerLeft{{"job", 0}, 0, trainer_.attach_id, "detached"});
  trainer_.attach_id = {4, 4};
  trainer_.launch = "run-2";
  Join(id);
  const base::Secret second = stream_->Key();
  EXPECT_FALSE(second == first);
  EXPECT_FALSE(second == other_job);
  journal_.kept = {};
  journal_.secret = SecretOf(2);
  Restart();
  Join(Connect());
  EXPECT_FALSE(stream_->Key().empty());
  EXPECT_FALSE(stream_->Key() == first);
}

TEST_F(DriverTest, AuditLinesAreDurableWithTheirRecordOrAtTheNextTick) {
  const StreamId id = Connect();
  EXPECT_TRUE(journal_.lines.empty());
  Join(id);
  EXPECT_THAT(journal_.lines,
              ElementsAre("coordinator started", "agent connected",
                          "generation formed", "join"));
  EXPECT_EQ(journal_.appends, 1);
  driver_->OnRefused({"call refused", {}, "", "x", "y", ""});
  EXPECT_EQ(journal_.appends, 1);
  driver_->Tick();
  EXPECT_EQ(journal_.lines.back(), "call refused");
  driver_->Tick();
  EXPECT_EQ(journal_.appends, 2);
}

TEST_F(DriverTest,
       sec_audit_EachActionOfAnOperatorLeavesItsLineBeforeTheAnswer) {
  Connect();
  for (int i = 1; i <= 2; ++i) {
    ASSERT_OK(driver_->Drain("a", false, {}));
    EXPECT_EQ(journal_.lines.back(), "agent drained");
    EXPECT_EQ(Count(journal_.lines, "agent drained"), i);
    ASSERT_OK(driver_->Backup("first", {}));
    EXPECT_EQ(journal_.lines.back(), "backup");
    EXPECT_EQ(Count(journal_.lines, "backup"), i);
  }
}

TEST_F(DriverTest, sec_audit_ABackupThatFailedSaysSo) {
  journal_.backup_fails = true;
  EXPECT_THAT(driver_->Backup("first", {}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("already")));
  EXPECT_THAT(journal_.lines,
              ElementsAre("coordinator started", "backup", "backup failed"));
}

TEST_F(DriverTest, sec_audit_WithoutItsLineNothingIsDone) {
  Connect();
  journal_.full = true;
  EXPECT_THAT(driver_->Drain("a", false, {}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("journal")));
  journal_.full = false;
  now_ += absl::Seconds(5);
  driver_->Tick();
  Connect();
  EXPECT_EQ(driver_->Snapshot().agents[0].drained, "");
}

TEST_F(DriverTest, sec_audit_ALogThatWasCutIsSaidByAnAgentThatWasToldMore) {
  const StreamId id = Connect();
  Join(id);
  driver_->Tick();
  const protocol::AuditHead head = Head();
  EXPECT_EQ(head.number, 4u);
  driver_->OnRefused({"call refused", {}, "", "x", "y", ""});
  driver_->Tick();
  EXPECT_EQ(Head().number, 4u);
  for (int i = 0; i < 5; ++i) {  // Also where nothing is decided.
    now_ += absl::Seconds(1);
    driver_->OnMessage(id, protocol::Heartbeat{});
    driver_->Tick();
  }
  EXPECT_EQ(Head().number, 5u);
  protocol::AuditHead forged = Head();
  ++forged.number;
  const std::vector<protocol::AuditHead> kept = {Head(), forged};
  journal_.lines.resize(3);
  journal_.NextTerm();
  Restart();
  for (int i = 0; i < 100; ++i) {  // Strangers do not drown it.
    driver_->OnRefused({"call refused", {}, "", absl::StrCat(i), "y", ""});
  }
  Connect({}, "", {head});
  EXPECT_EQ(driver_->Snapshot().audit_contradicted, 1u);
  driver_->Tick();
  EXPECT_EQ(journal_.lines[3], "coordinator started");
  EXPECT_EQ(Count(journal_.lines, "audit log changed"), 1);
  EXPECT_THAT(driver_->AuditWitnesses(),
              ElementsAre(AllOf(Field(&Witness::agent, "a"),
                                Field(&Witness::connected, true))));
  // After that its end is another one.
  journal_.NextTerm();
  Restart();
  Connect({}, "", kept);
  EXPECT_EQ(driver_->Snapshot().audit_contradicted, 1u);
  // What nobody was told shows nothing.
  Restart();
  Connect({}, "", {forged});
  EXPECT_EQ(driver_->Snapshot().audit_contradicted, 0u);
}

TEST_F(DriverTest, sec_audit_WhoTriesMuchHidesNotWhatOthersTry) {
  const auto refuse = [&](const std::string& who, int what) {
    driver_->OnRefused(
        {"call refused", {who, "5F"}, "", absl::StrCat(what), "y", ""});
  };
  for (int i = 0; i < 200; ++i) {
    refuse("stranger", i);
    refuse("spiffe://pactrain/reader", i);
    // Names that one holder of a job's key gives himself.
    driver_->OnRefused(
        {"call refused",
         {absl::StrCat("spiffe://vision.job.pactrain/agent/n", i, "..vision"),
          "key/8c1e00112233aabb"},
         "",
         absl::StrCat(i),
         "y",
         ""});
  }
  driver_->Tick();
  EXPECT_EQ(Count(journal_.lines, "call refused"), 64 + 16 + 16);
  EXPECT_EQ(Count(journal_.lines, "left out"), 3);
  refuse("spiffe://pactrain/operator/bob", 1);
  driver_->Tick();
  EXPECT_EQ(journal_.lines.back(), "call refused");
}

TEST_F(DriverTest, sec_audit_WhoJoinsAndLeavesInALoopPushesOutNoOthersLines) {
  caller_ = {"spiffe://pactrain/agent/a", "7F"};
  const StreamId id = Connect();
  Join(id);
  for (int i = 0; i < 1000; ++i) {
    JoinAnew(id);
    now_ += absl::Milliseconds(100);
    driver_->Tick();
  }
  EXPECT_TRUE(stream_->closed.ok());
  // Half of its own, since they are of one job.
  EXPECT_GE(journal_.lines.size(), LineBudget::kMaxLinesOfOne / 2);
  EXPECT_LT(journal_.lines.size(), LineBudget::kMaxLinesOfOne / 2 + 10);
  EXPECT_EQ(Count(journal_.lines, "left out"), 1);
  // What others do is told all the same.
  ASSERT_OK(driver_->Drain("a", true, {"spiffe://pactrain/operator", "9"}));
  EXPECT_EQ(Count(journal_.lines, "agent drained"), 1);
  now_ += LineBudget::kTime;
  driver_->Tick();
  EXPECT_EQ(Count(journal_.lines, "left out"), 2);
}

TEST_F(DriverTest, sec_audit_AnOperatorBeyondItsChangesIsRefusedThemselves) {
  Join(Connect());
  const protocol::Caller bob = {"spiffe://pactrain/operator/bob", "9"};
  const protocol::GroupId job = {"job", 0};
  for (int i = 0; i < protocol::kMaxChangesAtOnce; ++i) {
    const auto pin =
        i % 2 == 0 ? std::nullopt : std::optional(Pin{protocol::Mode::kFull});
    ASSERT_OK(driver_->SetPin(job, pin, bob));
  }
  driver_->Tick();
  const auto appends = journal_.appends;
  const auto is_refused =
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr("spiffe://pactrain/operator/bob makes more than 500 "
                         "changes at once"));
  EXPECT_THAT(driver_->SetPin(job, std::nullopt, bob), is_refused);
  EXPECT_THAT(driver_->Forget("job", bob), is_refused);
  EXPECT_THAT(driver_->Evict("agent/a", bob), is_refused);
  EXPECT_THAT(driver_->Readmit("agent/a", bob), is_refused);
  EXPECT_THAT(driver_->Drain("a", true, bob), is_refused);
  EXPECT_THAT(driver_->Undrain("a", bob), is_refused);
  EXPECT_THAT(driver_->Backup("first", bob), is_refused);
  EXPECT_EQ(journal_.appends, appends);
  EXPECT_TRUE(journal_.kept.groups.at(job).pin);
  driver_->Tick();
  EXPECT_EQ(journal_.lines.back(), "call refused");
  EXPECT_EQ(Count(journal_.lines, "call refused"), 1);
  EXPECT_OK(
      driver_->SetPin(job, std::nullopt, {"spiffe://pactrain/operator", "8"}));
  now_ += absl::Seconds(10);
  EXPECT_OK(driver_->Backup("first", bob));
}

TEST_F(DriverTest, sec_limits_JoinsOfAnAgent) {
  caller_ = {"spiffe://pactrain/agent/a", "7F"};
  const StreamId id = Connect();
  trainer_.world_size = 1024;  // They wait for others.
  uint64_t revision = 0;
  const auto join = [&](uint32_t number, uint32_t ranks) {
    constexpr uint32_t kModels = protocol::kMaxModels;
    const protocol::GroupId group = {absl::StrCat("job", number / kModels),
                                     static_cast<uint16_t>(number % kModels)};
    protocol::LocalTrainers local{group, ++revision, {}, {}, {}};
    for (trainer_.rank = 0; trainer_.rank < ranks; ++trainer_.rank) {
      trainer_.attach_id = {number, trainer_.rank};
      local.here.push_back({group, trainer_, 0});
    }
    driver_->OnMessage(id, local);
  };
  constexpr uint32_t kRanks = protocol::kMaxTrainersPerAgent;
  constexpr uint32_t kGroups = protocol::kMaxJoinsAtOnce / kRanks;
  for (uint32_t number = 0; number < kGroups; ++number) {
    join(number, kRanks);
    join(number, kRanks);  // Who is named again is no other one.
  }
  EXPECT_TRUE(stream_->closed.ok());
  join(kGroups, 1);
  EXPECT_THAT(stream_->closed,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("spiffe://pactrain/agent/a brings more than "
                                 "4096 new ranks at once")));
  // It was not let in first.
  EXPECT_EQ(driver_->Snapshot().groups.size(), kGroups);
  driver_->Tick();
  EXPECT_EQ(journal_.lines.back(), "agent refused");
}

TEST_F(DriverTest, AnAgentSaysWhatItKeepsByNow) {
  const StreamId id = Connect();
  Join(id);
  driver_->Tick();
  EXPECT_TRUE(driver_->AuditWitnesses().empty());
  driver_->OnMessage(id, protocol::Heartbeat{Head()});
  ASSERT_EQ(driver_->AuditWitnesses().size(), 1u);
  EXPECT_EQ(driver_->AuditWitnesses()[0].heads.back(), Head());
  EXPECT_EQ(driver_->Snapshot().audit_contradicted, 0u);
}

TEST_F(DriverTest, AnOlderCopyIsStoppedByAHistoryThatIsProvenOnly) {
  Join(Connect());
  protocol::HistoryMark mark;
  for (const auto& message : stream_->received) {
    if (const auto* told = std::get_if<protocol::HistoryMark>(&message)) {
      mark = *told;
    }
    // Before what it is for.
    if (std::holds_alternative<StartGeneration>(message)) break;
  }
  ASSERT_FALSE(mark.empty());
  EXPECT_FALSE(mark.proof.empty());
  journal_.ForgetHistory();
  Restart();
  protocol::HistoryMark forged = mark;
  ++forged.batches;
  for (const std::string& cluster :
       {std::string(), journal_.identity().cluster_id}) {
    Connect(forged, cluster);
    EXPECT_THAT(stream_->closed, StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("has not proven")));
  }
  Connect();
  EXPECT_TRUE(stream_->Got<Welcome>());
  const auto other = stream_;
  Connect(mark);
  EXPECT_THAT(stream_->closed, StatusIs(absl::StatusCode::kFailedPrecondition,
                                        HasSubstr("OLDER COPY")));
  EXPECT_THAT(other->closed, StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("OLDER COPY")));
}

TEST_F(DriverTest, AuditLinesOutliveAJournalThatCannotBeWritten) {
  Connect();
  journal_.full = true;
  driver_->Tick();
  EXPECT_TRUE(driver_->Snapshot().read_only);
  journal_.full = false;
  now_ += absl::Seconds(10);
  driver_->Tick();
  EXPECT_FALSE(driver_->Snapshot().read_only);
  EXPECT_THAT(journal_.lines,
              ElementsAre("coordinator started", "agent connected"));
}

TEST_F(DriverTest, sec_limits_ReportsBeyondTheLimitAreDropped) {
  const StreamId id = Connect();
  Join(id);
  // As many in one second as these; what the newest of them says is known.
  const auto reports = [&](int count) {
    for (int i = 1; i <= count; ++i) {
      protocol::StepReport report;
      report.group = {"job", 0};
      report.generation = 1;
      report.committed_step = report.committed_count = static_cast<uint64_t>(i);
      driver_->OnMessage(id, report);
    }
    return driver_->Snapshot().groups.at(0).committed_count;
  };
  EXPECT_EQ(reports(protocol::kMaxReportsPerSecond),
            uint64_t{protocol::kMaxReportsPerSecond});
  now_ += absl::Seconds(1);
  EXPECT_EQ(reports(protocol::kMaxReportsPerSecond + 1),
            uint64_t{protocol::kMaxReportsPerSecond});
  EXPECT_TRUE(stream_->closed.ok());
}

TEST_F(DriverTest, sec_limits_MessagesOfAStream) {
  const StreamId id = Connect();  // The first.
  for (int i = 1; i < protocol::kMaxMessagesPerSecond; ++i) {
    driver_->OnMessage(id, protocol::Heartbeat{});
  }
  EXPECT_TRUE(stream_->closed.ok());
  driver_->OnMessage(id, protocol::Heartbeat{});
  EXPECT_THAT(stream_->closed,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("20000 messages in a second")));
}

TEST_F(DriverTest, WhatCannotBeLoggedIsNotTold) {
  const StreamId id = Connect();
  journal_.full = true;
  Join(id);
  EXPECT_FALSE(stream_->Got<StartGeneration>());
  EXPECT_THAT(stream_->closed,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("journal")));
  EXPECT_TRUE(driver_->Snapshot().read_only);
  // The agent comes again and hears why nothing happens.
  Join(Connect());
  EXPECT_FALSE(stream_->Got<StartGeneration>());
  EXPECT_TRUE(stream_->Got<GroupWaiting>());
  EXPECT_TRUE(stream_->closed.ok());
}

TEST_F(DriverTest, ARunningGenerationGoesOnWhileReadOnly) {
  const StreamId id = Connect();
  Join(id);
  journal_.full = true;
  Join(id, "other");
  const StreamId again = Connect();
  Say(again, protocol::TrainerJoined{{"job", 0}, trainer_, 1});
  driver_->Tick();
  const StateSnapshot snapshot = driver_->Snapshot();
  ASSERT_EQ(snapshot.groups.size(), 1);
  EXPECT_EQ(snapshot.groups[0].phase, GroupPhase::kRunning);
  EXPECT_FALSE(stream_->Got<EndGeneration>());
}

TEST_F(DriverTest, FormsWhatWaitedOnceTheJournalIsBack) {
  const StreamId id = Connect();
  journal_.full = true;
  Join(id);
  Join(Connect());
  journal_.full = false;
  now_ += absl::Seconds(1);
  driver_->Tick();
  EXPECT_TRUE(driver_->Snapshot().read_only);
  now_ += absl::Seconds(4);
  driver_->Tick();
  EXPECT_FALSE(driver_->Snapshot().read_only);
  // The silent agent lost its stream meanwhile, as it should; it comes again.
  Join(Connect());
  EXPECT_TRUE(stream_->Got<StartGeneration>());
}

TEST_F(DriverTest, AStreamWithoutHelloIsClosed) {
  auto mute = std::make_shared<FakeStream>(&journal_);
  ASSERT_OK(driver_->Open(mute));
  now_ += absl::Seconds(5);
  driver_->Tick();
  EXPECT_TRUE(mute->closed.ok());
  now_ += absl::Milliseconds(1);
  driver_->Tick();
  EXPECT_THAT(mute->closed, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                     HasSubstr("Hello")));
}

TEST_F(DriverTest, ThreadsMeetSafely) {
  driver_->Start();
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      for (uint64_t round = 0; round < 100; ++round) {
        const auto stream = std::make_shared<FakeStream>(&journal_);
        const StreamId id = *driver_->Open(stream);
        driver_->OnMessage(id, protocol::AgentHello{absl::StrCat("agent-", i),
                                                    {1, i + 1},
                                                    "x",
                                                    "127.0.0.1:9",
                                                    "t",
                                                    ""});
        driver_->OnMessage(id, protocol::Heartbeat{});
        EXPECT_EQ(driver_->Snapshot().term, 1);
        driver_->OnClosed(id, "bye");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  driver_->Stop();
  for (const AgentSnapshot& agent : driver_->Snapshot().agents) {
    EXPECT_FALSE(agent.connected) << agent.agent;
  }
}

TEST_F(DriverTest, ATooChattyStreamIsClosed) {
  const StreamId id = Connect();
  for (int i = 0; i < 100'000 && stream_->closed.ok(); ++i) {
    driver_->OnMessage(id, protocol::Heartbeat{});
  }
  EXPECT_THAT(stream_->closed, StatusIs(absl::StatusCode::kResourceExhausted,
                                        HasSubstr("messages")));
}

TEST_F(DriverTest, TooManyStreamsAreRefused) {
  for (int i = 0; i < Options().max_agents + 64; ++i) {
    ASSERT_OK(driver_->Open(std::make_shared<FakeStream>(&journal_)));
  }
  EXPECT_THAT(
      driver_->Open(std::make_shared<FakeStream>(&journal_)),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("streams")));
}

TEST_F(DriverTest, DrainClosesStreamsAndTakesNoNewOnes) {
  Connect();
  driver_->Drain();
  EXPECT_THAT(stream_->closed, StatusIs(absl::StatusCode::kUnavailable,
                                        HasSubstr("shutting down")));
  EXPECT_THAT(driver_->Open(stream_), StatusIs(absl::StatusCode::kUnavailable,
                                               HasSubstr("shutting down")));
}

TEST_F(DriverTest, BadOptionsAreRefused) {
  Options options;
  options.epoch_steps = 0;
  EXPECT_THAT(
      Driver::Create(options, &journal_),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("epoch_steps")));
}

TEST_F(DriverTest, WhoOnlyReadsDoesNotWaitForTheDisk) {
  size_t agents = 0;
  journal_.on_append = [&] {
    std::thread reader([&] {
      agents = driver_->Snapshot().agents.size();
      driver_->Participants();
      driver_->AuditWitnesses();
      driver_->OnRefused({"call refused", {"x", ""}, "", "pin", "", ""});
    });
    reader.join();
  };
  Connect();
  driver_->Tick();
  EXPECT_EQ(agents, 1u);
  EXPECT_EQ(Count(journal_.lines, "call refused"), 0);
  // Also while it is tried whether it can be written again.
  journal_.full = true;
  driver_->Tick();
  now_ += absl::Minutes(1);
  agents = 7;
  driver_->Tick();
  EXPECT_EQ(agents, 0u);  // All connect again.
  journal_.full = false;
  journal_.on_append = nullptr;
  now_ += absl::Minutes(1);
  driver_->Tick();
  EXPECT_EQ(Count(journal_.lines, "call refused"), 1);
}

}  // namespace
}  // namespace pactrain::coordinator
