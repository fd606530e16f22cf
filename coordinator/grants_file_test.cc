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

TEST_F(GrantsFileTest, AMistakeAtTheStartNamesFileAndLine) {
  EXPECT_FALSE(GrantsFile::Open(path_).ok());
  Write("run: []\nrun: []");
  EXPECT_THAT(GrantsFile::Open(path_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(path_ + ":2: key 'run' is there twice")));
}

}  // namespace
}  // namespace pactrain::coordinator
