#include "coordinator/store/sqlite_journal.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "coordinator/core/test_cluster.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

bool operator==(const Recovered::Group& a, const Recovered::Group& b) {
  return a.generation == b.generation && a.ended == b.ended &&
         a.end_reason == b.end_reason && a.history == b.history &&
         a.prepared == b.prepared && a.last_version == b.last_version &&
         a.reserved_step == b.reserved_step && a.pin == b.pin &&
         a.detached_ranks == b.detached_ranks &&
         a.detached_of == b.detached_of && a.away == b.away &&
         a.ended_lineages == b.ended_lineages;
}

class SqliteJournalTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<SqliteJournal>> Open(
      const std::string& cluster = "one") {
    return SqliteJournal::Open(dir_, cluster);
  }
  void Overwrite(absl::string_view bytes) {
    std::filesystem::create_directories(dir_);
    std::ofstream(dir_ + "/journal.db", std::ios::trunc) << bytes;
  }

  const std::string dir_ = base::MakeTestFolder() + "/state";
};

TEST_F(SqliteJournalTest, EveryOpeningHasAHigherTermOfTheSameCluster) {
  std::string id;
  for (uint64_t term = 1; term <= 3; ++term) {
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    EXPECT_EQ(journal->identity().term, term);
    if (id.empty()) id = journal->identity().cluster_id;
    EXPECT_EQ(journal->identity().cluster_id, id);
    EXPECT_EQ(id.size(), 32);
  }
}

TEST_F(SqliteJournalTest, TheHistoryCountsBatchesOfRecordsOfEachOpening) {
  const JournalRecord record = StepsReserved{{"job", 0}, 5};
  base::Digest first;
  {
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    // To make it is one, so that agents hear of the audit log's end.
    EXPECT_EQ(journal->identity().history.mark().batches, 1u);
    ASSERT_OK(journal->Append({}, {}));
    ASSERT_OK(journal->Append({}, {protocol::AuditEvent{}}));
    EXPECT_EQ(journal->identity().history.mark().batches, 1u);
    ASSERT_OK(journal->Append({record, record}, {}));
    ASSERT_OK(journal->Append({record}, {}));
    first = journal->identity().history.self();
  }
  ASSERT_OK(Open());  // Writes nothing.
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  EXPECT_THAT(journal->identity().history.writers(),
              ElementsAre(Writer{first, 3}));
  ASSERT_OK(journal->Append({record}, {}));
  const base::Digest self = journal->identity().history.self();
  EXPECT_FALSE(self == first);
  EXPECT_THAT(journal->identity().history.writers(),
              ElementsAre(Writer{first, 3}, Writer{self, 1}));
}

TEST_F(SqliteJournalTest, ACopyDoesNotHoldWhatWasWrittenAfterIt) {
  const JournalRecord record = StepsReserved{{"job", 0}, 5};
  {
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    ASSERT_OK(journal->Append({record}, {}));
  }
  std::filesystem::copy(dir_, dir_ + "-copy");
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  ASSERT_OK_AND_ASSIGN(auto copy, SqliteJournal::Open(dir_ + "-copy", "one"));
  const auto mark = [&] { return journal->identity().history.mark(); };
  EXPECT_EQ(copy->identity().history.Find(mark()), History::Place::kHeld);
  ASSERT_OK(journal->Append({record}, {}));
  EXPECT_EQ(copy->identity().history.Find(mark()), History::Place::kLost);
  ASSERT_OK(copy->Append({record}, {}));
  EXPECT_EQ(copy->identity().history.Find(mark()), History::Place::kOther);
  std::filesystem::remove_all(dir_ + "-copy");
}

TEST_F(SqliteJournalTest, MissingFoldersAreMade) {
  EXPECT_OK(SqliteJournal::Open(dir_ + "-new/below/it", "one"));
}

TEST_F(SqliteJournalTest, TheClustersSecretIsMadeOnceForEachDirectory) {
  base::Secret secret;
  for (int opening = 0; opening < 3; ++opening) {
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    if (secret.empty()) secret = journal->cluster_secret();
    EXPECT_FALSE(secret.empty());
    EXPECT_TRUE(journal->cluster_secret() == secret);
  }
  ASSERT_OK_AND_ASSIGN(auto other, SqliteJournal::Open(dir_ + "-2", "one"));
  EXPECT_FALSE(other->cluster_secret() == secret);
  std::filesystem::remove_all(dir_ + "-2");
}

TEST_F(SqliteJournalTest, AJournalFromBeforeTheSecretGetsOne) {
  ASSERT_OK(Open());
  const auto change = [&](const char* sql) {
    ASSERT_OK_AND_ASSIGN(auto database, Database::Open(dir_ + "/journal.db"));
    ASSERT_OK(database->Execute(sql));
  };
  change("DELETE FROM meta WHERE key = 'cluster_secret'");
  base::Secret made;
  {
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    made = journal->cluster_secret();
  }
  EXPECT_FALSE(made.empty());
  {
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    EXPECT_TRUE(journal->cluster_secret() == made);
  }
  change("UPDATE meta SET value = 'abcd' WHERE key = 'cluster_secret'");
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kDataLoss,
                               AllOf(HasSubstr("secret is no 64 hex digits"),
                                     Not(HasSubstr("abcd")))));
}

TEST_F(SqliteJournalTest, OnlyItsOwnerMayUseTheFiles) {
  const auto mode = [&](const char* name) {
    struct stat file = {};
    EXPECT_EQ(stat((dir_ + name).c_str(), &file), 0) << name;
    return file.st_mode & 0777;
  };
  const mode_t before = umask(0);
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  ASSERT_OK(journal->Append({}, {}));
  for (const char* name : {"/journal.db", "/journal.db-wal", "/lock"}) {
    EXPECT_EQ(mode(name), 0600) << name;
  }
  journal.reset();
  // As an older version left it.
  ASSERT_EQ(chmod((dir_ + "/journal.db").c_str(), 0644), 0);
  ASSERT_OK_AND_ASSIGN(journal, Open());
  umask(before);
  EXPECT_EQ(mode("/journal.db"), 0600);
}

TEST_F(SqliteJournalTest, AnotherClustersDirectoryIsRefusedWithBothNames) {
  ASSERT_OK(Open("one"));
  EXPECT_THAT(Open("two"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("'one'"), HasSubstr("'two'"))));
  // The refusal took no term.
  ASSERT_OK_AND_ASSIGN(auto journal, Open("one"));
  EXPECT_EQ(journal->identity().term, 2);
}

TEST_F(SqliteJournalTest, ASecondCoordinatorIsRefused) {
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("in use")));
  journal.reset();
  EXPECT_OK(Open());
}

TEST_F(SqliteJournalTest, ADirectoryThatCannotBeMadeIsNamed) {
  EXPECT_THAT(
      SqliteJournal::Open("/proc/nowhere/state", "one"),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/proc/nowhere")));
}

TEST_F(SqliteJournalTest, AFileThatIsNoDatabaseIsDataLoss) {
  Overwrite(std::string(8192, 'x'));
  EXPECT_THAT(Open(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("journal.db")));
}

TEST_F(SqliteJournalTest, ANewerSchemaIsRefused) {
  ASSERT_OK(Open());
  {
    ASSERT_OK_AND_ASSIGN(auto database, Database::Open(dir_ + "/journal.db"));
    ASSERT_OK(database->Execute("PRAGMA user_version = 99"));
  }
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("version 99")));
}

TEST_F(SqliteJournalTest, AGenerationRecordThatCannotBeOursIsDataLoss) {
  TestCluster t;
  t.FormFour();
  {
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    ASSERT_OK(journal->Append(t.records(), {}));
  }
  {
    ASSERT_OK_AND_ASSIGN(auto database, Database::Open(dir_ + "/journal.db"));
    ASSERT_OK(database->Execute("UPDATE generations SET record = x'0a'"));
  }
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("job")));
}

// Everything that the core writes in an eventful life, read back after each
// step, equals the fold of the records.
TEST_F(SqliteJournalTest, RecoversWhatTheRecordsFoldTo) {
  TestCluster t;
  const auto check = [&](const char* what) {
    {
      ASSERT_OK_AND_ASSIGN(auto journal, Open());
      ASSERT_OK(journal->Append(t.records(), {}));
    }
    t.Clear();
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    ASSERT_EQ(journal->recovered().groups.size(), t.journal().groups.size())
        << what;
    for (const auto& [id, group] : t.journal().groups) {
      EXPECT_TRUE(journal->recovered().groups.at(id) == group) << what;
    }
  };
  const auto vote_all = [&](uint64_t mask) {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      t.Vote(rank < 2 ? "a" : "b", rank, mask);
    }
  };
  t.FormFour();
  check("formed");
  vote_all(11);
  check("prepared");
  t.Answer("b", 2, false);
  check("revoked");
  t.Report("a", 1, 600);
  check("reserved");
  for (uint64_t mask = 20; mask < 20 + 2 * kMaxHistory; ++mask) vote_all(mask);
  check("history is bounded");
  t.Pin({{protocol::Mode::kTernary, protocol::Codec::kLevels7}});
  check("pinned");
  t.Leave("b", 3, "crashed");
  check("ended");
  t.Pin(std::nullopt);
  check("the pin is taken back");
  t.group = {"other", 3};
  t.Join("a", 0, 1);
  check("second group");
  t.group = {"elastic", 0};
  t.on_shrink = protocol::OnShrink::kPause;
  for (uint32_t rank = 0; rank < 3; ++rank) t.Join("a", rank, 3, "run-9");
  check("third group");
  t.Leave("a", 1, "detached");
  t.Advance(absl::ZeroDuration());
  EXPECT_THAT(t.journal().groups.at(t.group).detached_ranks, ElementsAre(1));
  check("detached");
  for (uint32_t rank : {0, 2}) t.Leave("a", rank, "rank 1 left", true);
  t.lineage = {t.LineageOf(1), 1};
  for (uint32_t rank : {0, 2}) t.Join("a", rank, 3, "run-9");
  t.lineage = {};
  EXPECT_THAT(t.journal().groups.at(t.group).detached_ranks, IsEmpty());
  EXPECT_THAT(t.journal().groups.at(t.group).detached_of.at("run-9"),
              ElementsAre(1));
  check("the next generation");
  t.group = {"other", 3};
  Effects forget;
  forget.records.push_back(GroupForgotten{{"other", 3}});
  t.Act(forget);
  check("forgotten");
}

TEST_F(SqliteJournalTest, WhoIsDrainedIsRecovered) {
  const AgentDrained first{"a", {1, 2}, "ann", false};
  const AgentDrained second{"b", {3, 4}, "bob", true};
  {
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    ASSERT_OK(journal->Append({first, second}, {}));
  }
  {
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    EXPECT_THAT(journal->recovered().drained,
                ElementsAre(Pair("a", first), Pair("b", second)));
    ASSERT_OK(journal->Append({AgentUndrained{"a", "by an operator"}}, {}));
  }
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  EXPECT_THAT(journal->recovered().drained, ElementsAre(Pair("b", second)));
}

TEST_F(SqliteJournalTest, AJournalOfTheFirstSchemaIsBroughtUpToDate) {
  TestCluster t;
  t.FormFour();
  {
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    ASSERT_OK(journal->Append(t.records(), {}));
  }
  {
    ASSERT_OK_AND_ASSIGN(auto database, Database::Open(dir_ + "/journal.db"));
    ASSERT_OK(database->Execute(
        "ALTER TABLE groups DROP COLUMN pin_mode;"
        "ALTER TABLE groups DROP COLUMN pin_codec;"
        "ALTER TABLE groups DROP COLUMN lineage;"
        "DROP TABLE ended_lineages; DROP TABLE holders_away;"
        "DROP TABLE audit; DROP TABLE audit_ends; DROP TABLE writers;"
        "DROP TABLE detached_ranks; DROP TABLE detached_of_launch;"
        "DROP TABLE denied; DROP TABLE drained;"
        "PRAGMA user_version = 1"));
  }
  t.Clear();
  t.Pin({{protocol::Mode::kFull, protocol::Codec::kBf16}});
  Effects detached;
  detached.records.push_back(
      TrainersDetached{t.group, 1, {2, 3}, {{"run-1", {2, 3}}}});
  t.Act(detached);
  {
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    ASSERT_OK(journal->Append(t.records(), {{"pin", {}, "", "", "", ""}}));
  }
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  Recovered::Group group = journal->recovered().groups.at(t.group);
  // Nobody can hold a state of what was written before there were lineages.
  ASSERT_EQ(group.ended_lineages.size(), 1u);
  EXPECT_EQ(group.ended_lineages[0].how, "an older PacTrain kept none");
  group.ended_lineages.clear();
  EXPECT_TRUE(group == t.journal().groups.at(t.group));
  ASSERT_OK_AND_ASSIGN(const auto page, journal->ReadAudit(0));
  EXPECT_EQ(page.lines.size(), 1u);
}

TEST_F(SqliteJournalTest, OldRowsAreDropped) {
  TestCluster t;
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  t.Connect("a", "x");
  for (size_t i = 0; i < 3 * kMaxHistory; ++i) {
    t.Join("a", 0, 1, absl::StrCat("run-", i));
    t.Vote("a", 0, 100 + i);
    t.Leave("a", 0, "detached");
  }
  ASSERT_OK(journal->Append(t.records(), {}));
  journal.reset();
  ASSERT_OK_AND_ASSIGN(auto database, Database::Open(dir_ + "/journal.db"));
  for (const char* table : {"generations", "decisions", "mask_sets"}) {
    uint64_t rows = 0;
    ASSERT_OK(database->Prepare(absl::StrCat("SELECT count(*) FROM ", table))
                  .Run([&](const Statement& row) {
                    rows = row.Integer(0);
                    return absl::OkStatus();
                  }));
    EXPECT_EQ(rows, kMaxHistory) << table;
  }
}

TEST_F(SqliteJournalTest, ABatchIsKeptAsAWholeOrNotAtAll) {
  TestCluster t;
  t.FormFour();
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  {
    ASSERT_OK_AND_ASSIGN(auto database, Database::Open(dir_ + "/journal.db"));
    ASSERT_OK(database->Execute("DROP TABLE mask_sets"));
  }
  std::vector<JournalRecord> records = t.records();
  records.push_back(MaskSetStable{t.group, 1, {1, 1}, {2, 2}, 30, 100});
  EXPECT_FALSE(journal->Append(records, {}).ok());
  journal.reset();
  ASSERT_OK_AND_ASSIGN(journal, Open());
  EXPECT_TRUE(journal->recovered().groups.empty());
  EXPECT_OK(journal->Append(t.records(), {}));
}

// COMMIT said that it failed, and what it wrote is there: nobody was told of
// it, so what is formed instead takes its place.
TEST_F(SqliteJournalTest, ARecordThatIsThereAlreadyIsWrittenAnew) {
  TestCluster failed, instead;
  failed.FormFour();
  instead.on_shrink = protocol::OnShrink::kPause;
  instead.FormFour();
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  ASSERT_OK(journal->Append(failed.records(), {}));
  ASSERT_OK(journal->Append(instead.records(), {}));
  journal.reset();
  ASSERT_OK_AND_ASSIGN(journal, Open());
  EXPECT_TRUE(journal->recovered().groups.at(instead.group) ==
              instead.journal().groups.at(instead.group));
}

TEST_F(SqliteJournalTest, LineagesAndHoldersAreKept) {
  TestCluster t;
  t.on_shrink = protocol::OnShrink::kContinue;
  t.FormFour();
  t.Leave("b", 3, "killed by signal 9");
  for (uint32_t rank : {0, 1}) t.Leave("a", rank, "rank 3 left", true);
  t.Disconnect("b");
  t.lineage = {t.LineageOf(1), 7};
  for (uint32_t rank : {0, 1}) t.Join("a", rank, 4);
  t.lineage = {};
  t.Pass(60, {"a"});
  ASSERT_EQ(t.journal().groups.at(t.group).away.size(), 1u);  // Rank 2.
  const auto check = [&](const std::string& what) {
    ASSERT_OK_AND_ASSIGN(auto journal, Open());
    ASSERT_OK(journal->Append(t.records(), {}));
    t.Clear();
    journal.reset();
    ASSERT_OK_AND_ASSIGN(journal, Open());
    EXPECT_TRUE(journal->recovered().groups.at(t.group) ==
                t.journal().groups.at(t.group))
        << what;
  };
  check("somebody is away");
  t.replace = true;
  for (uint32_t rank : {0, 1}) t.Join("a", rank, 2, "run-2");
  EXPECT_EQ(t.journal().groups.at(t.group).ended_lineages.size(), 1u);
  EXPECT_TRUE(t.journal().groups.at(t.group).away.empty());
  check("replaced");
}

// No file may grow past `bytes` while this lives: a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

TEST_F(SqliteJournalTest, AFullDiskAtStartIsAnErrorThatNamesTheFile) {
  FullDisk full(1);
  const auto journal = Open();
  ASSERT_FALSE(journal.ok());
  EXPECT_THAT(std::string(journal.status().message()), HasSubstr("journal.db"));
}

TEST_F(SqliteJournalTest, AFullDiskLaterLosesNothingAndHeals) {
  TestCluster t;
  t.FormFour();
  ASSERT_OK_AND_ASSIGN(auto journal, Open());
  {
    FullDisk full(1);
    EXPECT_FALSE(journal->Append(t.records(), {}).ok());
    EXPECT_FALSE(journal->Append({}, {}).ok());
  }
  EXPECT_OK(journal->Append({}, {}));
  EXPECT_OK(journal->Append(t.records(), {}));
  journal.reset();
  ASSERT_OK_AND_ASSIGN(journal, Open());
  EXPECT_EQ(journal->recovered().groups.size(), 1);
}

}  // namespace
}  // namespace pactrain::coordinator
