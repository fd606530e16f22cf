#include "coordinator/store/backup.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "coordinator/core/test_cluster.h"
#include "coordinator/store/sqlite_journal.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using ::testing::HasSubstr;

class BackupTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<SqliteJournal>> Open(const std::string& dir) {
    return SqliteJournal::Open(dir, "one");
  }
  // Of a generation, a decision and a pin.
  static std::vector<JournalRecord> SomeRecords() {
    TestCluster t;
    t.FormFour();
    t.Pin(Pin{protocol::Mode::kCompacted, protocol::Codec::kBf16});
    return t.records();
  }

  const std::string folder_ =
      std::filesystem::path(base::MakeTestFolder()).lexically_normal();
  const std::string dir_ = folder_ + "/state", other_ = folder_ + "/other";
};

TEST_F(BackupTest, ItHoldsAllThatWasWrittenBeforeItAndNothingElse) {
  ASSERT_OK_AND_ASSIGN(auto journal, Open(dir_));
  ASSERT_OK(journal->Append(SomeRecords(), {protocol::AuditEvent{}}));
  ASSERT_OK_AND_ASSIGN(const std::string path, journal->Backup("first"));
  EXPECT_EQ(path, dir_ + "/backups/first");
  struct stat about = {};
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0600u);
  // While it is written, and afterwards, the journal goes on.
  const protocol::GroupId group{"job", 0};
  ASSERT_OK(journal->Append({PinSet{group, std::nullopt}}, {}));

  ASSERT_OK(RestoreBackup(path, other_, "one"));
  ASSERT_OK_AND_ASSIGN(auto restored, Open(other_));
  const auto& found = restored->recovered().groups.at(group);
  EXPECT_EQ(found.pin,
            (Pin{protocol::Mode::kCompacted, protocol::Codec::kBf16}));
  EXPECT_EQ(found.generation.number, 1u);
  EXPECT_GT(found.last_version, kBeyond);
  EXPECT_EQ(restored->identity().cluster_id, journal->identity().cluster_id);
  EXPECT_TRUE(restored->cluster_secret() == journal->cluster_secret());
  EXPECT_EQ(restored->identity().term, journal->identity().term + kBeyond + 1);
  EXPECT_EQ(restored->identity().first_generation, 1 + kBeyond);
  EXPECT_EQ(
      restored->identity().history.Find(journal->identity().history.mark()),
      History::Place::kGone);
  // The journal does not take the other's word for its own past.
  EXPECT_NE(
      journal->identity().history.Find(restored->identity().history.mark()),
      History::Place::kHeld);
  ASSERT_OK_AND_ASSIGN(const auto page, restored->ReadAudit(1));
  ASSERT_EQ(page.lines.size(), 1u);
  EXPECT_EQ(page.lines[0].event.kind, "state restored");
}

TEST_F(BackupTest, ARestoredOneIsBackedUpAndRestoredAgain) {
  ASSERT_OK_AND_ASSIGN(auto journal, Open(dir_));
  ASSERT_OK(journal->Append(SomeRecords(), {}));
  ASSERT_OK_AND_ASSIGN(const std::string first, journal->Backup("first"));
  ASSERT_OK(RestoreBackup(first, other_, "one"));
  ASSERT_OK_AND_ASSIGN(auto restored, Open(other_));
  ASSERT_OK_AND_ASSIGN(const std::string second, restored->Backup("second"));
  ASSERT_OK(RestoreBackup(second, folder_ + "/third", "one"));
  ASSERT_OK_AND_ASSIGN(auto again, Open(folder_ + "/third"));
  EXPECT_EQ(again->identity().first_generation, 1 + 2 * kBeyond);
  for (const SqliteJournal* before : {journal.get(), restored.get()}) {
    EXPECT_NE(again->identity().history.Find(before->identity().history.mark()),
              History::Place::kLost);
  }
}

TEST_F(BackupTest, NothingIsOverwritten) {
  ASSERT_OK_AND_ASSIGN(auto journal, Open(dir_));
  ASSERT_OK_AND_ASSIGN(const std::string path, journal->Backup("first"));
  EXPECT_THAT(journal->Backup("first"),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(path)));
  std::filesystem::create_symlink(folder_ + "/theirs", dir_ + "/backups/link");
  EXPECT_THAT(journal->Backup("link"),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("link")));
  ASSERT_OK(Open(other_));
  EXPECT_THAT(RestoreBackup(path, other_, "one"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("--restore overwrites nothing")));
  EXPECT_THAT(RestoreBackup(path, dir_, "one"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("in use by another coordinator")));
}

TEST_F(BackupTest, ItsPathIsWholeWhereTheStateDirectoryIsNamedFromHere) {
  ASSERT_OK_AND_ASSIGN(auto journal, Open(std::filesystem::relative(dir_)));
  ASSERT_OK_AND_ASSIGN(const std::string path, journal->Backup("first"));
  EXPECT_EQ(path, dir_ + "/backups/first");
}

TEST_F(BackupTest, ItsNameLeadsNowhereElse) {
  ASSERT_OK_AND_ASSIGN(auto journal, Open(dir_));
  for (const char* name : {"", "a/b", "../journal.db", ".", "first.part"}) {
    EXPECT_THAT(journal->Backup(name),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("FILE")))
        << name;
  }
}

TEST_F(BackupTest, sec_limits_Backups) {
  ASSERT_OK_AND_ASSIGN(auto journal, Open(dir_));
  for (size_t i = 0; i < kMaxBackups; ++i) {
    ASSERT_OK(journal->Backup(absl::StrCat("b", i)));
  }
  EXPECT_THAT(journal->Backup("one-more"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("bring some elsewhere")));
  // What was left by one that did not come to its end counts for nothing.
  std::filesystem::rename(dir_ + "/backups/b0", dir_ + "/backups/x.part");
  EXPECT_OK(journal->Backup("x"));
}

TEST_F(BackupTest, WhatIsNoBackupMakesNoStateDirectory) {
  ASSERT_OK_AND_ASSIGN(auto journal, Open(dir_));
  ASSERT_OK(journal->Append(SomeRecords(), {}));
  ASSERT_OK_AND_ASSIGN(const std::string path, journal->Backup("first"));
  const std::string bad = folder_ + "/bad";
  EXPECT_THAT(RestoreBackup(bad, other_, "one"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(bad)));
  std::ofstream(bad) << "no database, but long enough to be one, or is it?";
  EXPECT_THAT(RestoreBackup(bad, other_, "one"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(bad)));
  std::ofstream(bad, std::ios::trunc).close();
  EXPECT_THAT(RestoreBackup(bad, other_, "one"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no schema")));
  std::filesystem::copy_file(path, folder_ + "/short");
  std::filesystem::resize_file(folder_ + "/short", 20'000);
  EXPECT_THAT(RestoreBackup(folder_ + "/short", other_, "one"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("short")));
  EXPECT_THAT(RestoreBackup(path, other_, "two"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("is a backup of cluster 'one'")));
  EXPECT_FALSE(std::filesystem::exists(other_ + "/journal.db"));
  EXPECT_FALSE(std::filesystem::exists(other_ + "/journal.db.part"));
  EXPECT_OK(RestoreBackup(path, other_, "one"));
}

}  // namespace
}  // namespace pactrain::coordinator
