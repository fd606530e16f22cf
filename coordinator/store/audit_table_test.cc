#include "coordinator/store/audit_table.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "base/tls/chain_hash.h"
#include "coordinator/store/sqlite_journal.h"

namespace pactrain::coordinator {
namespace {

using protocol::AuditEvent;
using protocol::AuditPage;

class AuditTableTest : public ::testing::Test {
 protected:
  static std::vector<AuditEvent> Events(int count) {
    std::vector<AuditEvent> events(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) events[i].what = absl::StrCat("event ", i);
    return events;
  }
  const std::string dir_ = base::MakeTestFolder() + "/state";
};

TEST_F(AuditTableTest, LinesComeInPagesAndAreChained) {
  ASSERT_OK_AND_ASSIGN(auto journal, SqliteJournal::Open(dir_, "one"));
  ASSERT_OK(journal->Append({}, Events(protocol::kMaxAuditPage + 1)));
  ASSERT_OK_AND_ASSIGN(const AuditPage first, journal->ReadAudit(0));
  EXPECT_EQ(first.newest, protocol::kMaxAuditPage + 1);
  EXPECT_EQ(first.before, "");
  ASSERT_EQ(first.lines.size(), protocol::kMaxAuditPage);
  std::string hash;
  for (const protocol::AuditLine& line : first.lines) {
    hash = base::ChainHash(hash, line.Fields());
    ASSERT_EQ(line.hash, hash) << line.number;
  }
  ASSERT_OK_AND_ASSIGN(const AuditPage second,
                       journal->ReadAudit(protocol::kMaxAuditPage));
  EXPECT_EQ(second.before, hash);
  ASSERT_EQ(second.lines.size(), 1u);
  ASSERT_OK_AND_ASSIGN(const AuditPage none, journal->ReadAudit(99999));
  EXPECT_TRUE(none.lines.empty());
}

TEST_F(AuditTableTest, sec_limits_LinesOfTheAuditLog) {
  ASSERT_OK_AND_ASSIGN(auto journal, SqliteJournal::Open(dir_, "one"));
  ASSERT_OK(journal->Append({}, Events(int{protocol::kMaxAuditLines})));
  ASSERT_OK_AND_ASSIGN(const AuditPage most, journal->ReadAudit(0));
  EXPECT_EQ(most.newest, protocol::kMaxAuditLines);
  EXPECT_EQ(most.lines.at(0).number, 1u);
  ASSERT_OK(journal->Append({}, Events(1)));
  ASSERT_OK_AND_ASSIGN(const AuditPage above, journal->ReadAudit(0));
  EXPECT_EQ(above.newest, protocol::kMaxAuditLines + 1);
  EXPECT_EQ(above.lines.at(0).number, protocol::kAuditCut + 1);
  journal.reset();
  ASSERT_OK_AND_ASSIGN(journal, SqliteJournal::Open(dir_, "one"));
  EXPECT_EQ(journal->audit().changed, "");
}

TEST_F(AuditTableTest, OldLinesAreCutAndTheChainLeadsOn) {
  constexpr int kMost = 50;
  {
    ASSERT_OK_AND_ASSIGN(auto journal, SqliteJournal::Open(dir_, "one", kMost));
    ASSERT_OK(journal->Append({}, Events(kMost)));
    ASSERT_OK_AND_ASSIGN(const AuditPage page, journal->ReadAudit(0));
    EXPECT_EQ(page.lines.size(), size_t{kMost});
    ASSERT_OK(journal->Append({}, Events(1)));
  }
  ASSERT_OK_AND_ASSIGN(auto journal, SqliteJournal::Open(dir_, "one", kMost));
  ASSERT_OK(journal->Append({}, Events(1)));
  ASSERT_OK_AND_ASSIGN(const AuditPage page, journal->ReadAudit(0));
  ASSERT_EQ(page.lines.size(), 2u);
  EXPECT_EQ(page.lines[0].number, uint64_t{kMost} + 1);
  EXPECT_EQ(page.lines[0].hash,
            base::ChainHash(page.before, page.lines[0].Fields()));
}

TEST_F(AuditTableTest, WhatCannotBeKeptIsNotPartOfTheChain) {
  ASSERT_OK_AND_ASSIGN(auto journal, SqliteJournal::Open(dir_, "one"));
  {
    ASSERT_OK_AND_ASSIGN(auto database, Database::Open(dir_ + "/journal.db"));
    ASSERT_OK(database->Execute("DROP TABLE mask_sets"));
  }
  // The record has no place: the whole batch is refused.
  MaskSetStable stable;
  stable.group = {"job", 0};
  EXPECT_FALSE(journal->Append({stable}, Events(3)).ok());
  ASSERT_OK(journal->Append({}, Events(1)));
  ASSERT_OK_AND_ASSIGN(const AuditPage page, journal->ReadAudit(0));
  ASSERT_EQ(page.lines.size(), 1u);
  EXPECT_EQ(page.lines[0].number, 1u);
}

TEST_F(AuditTableTest, LongAndOddTextsAreMadeFit) {
  ASSERT_OK_AND_ASSIGN(auto journal, SqliteJournal::Open(dir_, "one"));
  AuditEvent event;
  event.why = "\xff" + std::string(9000, 'x');
  ASSERT_OK(journal->Append({}, {event}));
  ASSERT_OK_AND_ASSIGN(const AuditPage page, journal->ReadAudit(0));
  EXPECT_EQ(page.lines.at(0).event.why,
            "\\xff" + std::string(protocol::kMaxAuditText - 4, 'x'));
}

// Attack 13: whoever a CA gives such a certificate writes no line of his own.
TEST_F(AuditTableTest, sec_ATextFromOutsideForgesNoLine) {
  ASSERT_OK_AND_ASSIGN(auto journal, SqliteJournal::Open(dir_, "one"));
  AuditEvent event;
  event.caller.who =
      "spiffe://a\n2  pin\xc2\x9b"
      "2K\xe2\x80\xae";
  ASSERT_OK(journal->Append({}, {event}));
  ASSERT_OK_AND_ASSIGN(const AuditPage page, journal->ReadAudit(0));
  EXPECT_EQ(page.lines.at(0).event.caller.who,
            "spiffe://a\\x0a2  pin\\u{009b}2K\\u{202e}");
}

}  // namespace
}  // namespace pactrain::coordinator
