#include "coordinator/grants_file.h"

#include <filesystem>
#include <fstream>

#include "base/log_capture.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using ::testing::HasSubstr;

class GrantsFileTest : public ::testing::Test {
 protected:
  void Write(const std::string& contents) { std::ofstream(path_) << contents; }
  // What is in force after this many more looks at the file.
  std::shared_ptr<const Grants> Look(GrantsFile& file, int looks) {
    std::shared_ptr<const Grants> grants;
    for (int i = 0; i < looks; ++i) {
      now_ += WatchedFile::kLookEvery;
      grants = file.Get(now_);
    }
    return grants;
  }
  static bool Runs(const Grants& grants, const std::string& job) {
    return grants.Check({protocol::Role::kAgent, "a"}, "", Action::kRun, job)
        .ok();
  }

  const std::string path_ = base::MakeTestFolder() + "/policy.yaml";
  base::LogCapture log_;
  absl::Duration now_;
};

TEST_F(GrantsFileTest, IsReadAnewWithinFiveSeconds) {
  Write("run: [agent/a=vision]");
  ASSERT_OK_AND_ASSIGN(const auto file, GrantsFile::Open(path_));
  const auto before = Look(*file, 1);
  EXPECT_TRUE(Runs(*before, "vision"));
  EXPECT_EQ(Look(*file, 3), before);  // Nothing to look at again.
  Write("run: [agent/a=text]");
  const auto after = Look(*file, 3);
  EXPECT_LE(3 * WatchedFile::kLookEvery, absl::Seconds(5));
  EXPECT_FALSE(Runs(*after, "vision"));
  EXPECT_TRUE(Runs(*after, "text"));
}

TEST_F(GrantsFileTest, sec_HalfAFileLocksNobodyOut) {
  Write("run: [agent/a=vision]");
  ASSERT_OK_AND_ASSIGN(const auto file, GrantsFile::Open(path_));
  Write("");  // Somebody begins to write.
  EXPECT_TRUE(Runs(*Look(*file, 1), "vision"));
  Write("run: [agent/a=vision, agent/a=text]");
  EXPECT_TRUE(Runs(*Look(*file, 1), "vision"));
  EXPECT_TRUE(Runs(*Look(*file, 1), "text"));
}

TEST_F(GrantsFileTest, sec_AFileThatCannotBeUsedChangesNothingAndIsTold) {
  Write("run: [agent/a=vision]");
  ASSERT_OK_AND_ASSIGN(const auto file, GrantsFile::Open(path_));
  Write("run: [agent/a]");
  EXPECT_TRUE(Runs(*Look(*file, 5), "vision"));
  EXPECT_EQ(log_.Count("'agent/a' is no rule"), 1) << log_.text();
  std::filesystem::remove(path_);
  EXPECT_TRUE(Runs(*Look(*file, 5), "vision"));
  EXPECT_EQ(log_.Count("cannot be read"), 1) << log_.text();
  EXPECT_EQ(log_.Count("stays in force"), 2) << log_.text();
  // Back as it was.
  Write("run: [agent/a=vision]");
  EXPECT_TRUE(Runs(*Look(*file, 5), "vision"));
}

TEST_F(GrantsFileTest, sec_AFileThatOthersMayWriteIsNotTaken) {
  namespace fs = std::filesystem;
  Write("run: [agent/a=vision]");
  ASSERT_OK_AND_ASSIGN(const auto file, GrantsFile::Open(path_));
  fs::permissions(path_, fs::perms::others_write, fs::perm_options::add);
  Write("run: ['*=*', 'agent/x=*']");
  EXPECT_TRUE(Runs(*Look(*file, 5), "vision"));
  EXPECT_FALSE(Runs(*Look(*file, 5), "text"));
  EXPECT_EQ(log_.Count("others may write it; run: chmod go-w " + path_), 1)
      << log_.text();
  EXPECT_THAT(GrantsFile::Open(path_),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("go-w " + path_)));
  fs::permissions(path_, fs::perms::others_write, fs::perm_options::remove);
  // Nor one that others may put there.
  const std::string folder = fs::canonical(path_).parent_path();
  fs::permissions(folder, fs::perms::all);
  EXPECT_THAT(GrantsFile::Open(path_),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("others may write in " + folder)));
  fs::permissions(folder, fs::perms::owner_all);
  Write("run: [agent/a=text]");
  EXPECT_TRUE(Runs(*Look(*file, 5), "text"));
}

TEST_F(GrantsFileTest, sec_AFileWithoutRulesIsAMistake) {
  Write("run: [agent/a=vision]\ndeny: [agent/b]");
  ASSERT_OK_AND_ASSIGN(const auto file, GrantsFile::Open(path_));
  for (const std::string none : {"", "# run: [agent/a=text]\n", "run: []"}) {
    Write(none);
    const auto grants = Look(*file, 5);
    EXPECT_TRUE(Runs(*grants, "vision"));
    EXPECT_FALSE(
        grants->CheckDenied({{protocol::Role::kAgent, "b"}, "", "", ""}).ok());
    const auto opened = GrantsFile::Open(path_);
    ASSERT_THAT(opened, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr(path_ + ": it has no rule")));
    // What it says instead does what it says.
    const std::string text(opened.status().message());
    Write(text.substr(text.find("deny: [")));
    ASSERT_OK_AND_ASSIGN(const auto all_out, GrantsFile::Open(path_));
    for (const protocol::Identity& who :
         {protocol::AgentCalled("a"), protocol::AgentCalled("a..job"),
          protocol::Identity{protocol::Role::kOperator, ""},
          protocol::Identity{protocol::Role::kReader, "ann"}}) {
      EXPECT_FALSE(all_out->Get(now_)->CheckDenied({who, "", "", ""}).ok())
          << who.Short();
    }
  }
}

TEST_F(GrantsFileTest, AMistakeAtTheStartNamesFileAndLine) {
  EXPECT_FALSE(GrantsFile::Open(path_).ok());
  Write("run: []\nrun: []");
  EXPECT_THAT(GrantsFile::Open(path_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(path_ + ":2: key 'run' is there twice")));
}

}  // namespace
}  // namespace pactrain::coordinator
