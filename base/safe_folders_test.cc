// Whose folders lie above a socket. As root folders of others are real.
#include "base/safe_folders.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uid_t kOther = 65534;
constexpr uid_t kThird = 65533;

class SafeFoldersTest : public ::testing::Test {
 protected:
  SafeFoldersTest() {
    char folder[] = "/tmp/pactrain-test-XXXXXX";
    root_ = mkdtemp(folder);
  }
  ~SafeFoldersTest() override { std::filesystem::remove_all(root_); }

  // A new folder below root_.
  std::string Make(const std::string& name, mode_t mode, uid_t owner) {
    const std::string path = root_ + "/" + name;
    EXPECT_EQ(mkdir(path.c_str(), 0700), 0);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    if (owner != geteuid()) {
      EXPECT_EQ(chown(path.c_str(), owner, owner), 0);
    }
    return path;
  }
  static std::string Trouble(const std::string& folder, bool one_more = true) {
    return CheckFolders(folder + "/agent.sock", one_more).trouble;
  }

  std::string root_;
};

TEST_F(SafeFoldersTest, FoldersOfOnesOwnAndOfRootAreSafe) {
  EXPECT_EQ(Trouble(Make("run", 0755, geteuid())), "");
  EXPECT_EQ(Trouble(root_ + "/missing"), "");
  EXPECT_EQ(Trouble("/tmp"), "") << "who serves a socket there is asked";
  EXPECT_TRUE(CheckFolders("/tmp/agent.sock", true).Trusts(geteuid()));
}

TEST_F(SafeFoldersTest, SecAFolderWhereOthersWriteIsNot) {
  const std::string folder = Make("run", 0777, geteuid());
  EXPECT_EQ(Trouble(folder), "others may write in " + folder +
                                 " and could replace it; run: chmod go-w " +
                                 folder);
  // Also above.
  mkdir((folder + "/deep").c_str(), 0700);
  EXPECT_THAT(Trouble(folder + "/deep"), HasSubstr("others may write"));
}

TEST_F(SafeFoldersTest, SecOneMoreUserIsTrustedWithTheFolderThatHeWasGiven) {
  if (geteuid() != 0) GTEST_SKIP() << "needs to be root to give it away";
  const std::string given = Make("given", 0755, kOther);
  const SafeFolders found = CheckFolders(given + "/agent.sock", true);
  EXPECT_EQ(found.trouble, "");
  EXPECT_THAT(found.users, Contains(kOther));
  EXPECT_THAT(Trouble(given, /*one_more=*/false),
              HasSubstr(given + " is of user 65534, who could replace it"));
  // Not a second one in it.
  const std::string deep = Make("given/deep", 0755, kThird);
  EXPECT_THAT(Trouble(deep), HasSubstr("is of user 65533"));
}

TEST_F(SafeFoldersTest, SecWhatLiesWhereAllMayWriteWasGivenByNobody) {
  if (geteuid() != 0) GTEST_SKIP() << "needs to be root to give it away";
  Make("tmp", 01777, 0);
  EXPECT_THAT(Trouble(Make("tmp/theirs", 0755, kOther)),
              HasSubstr("tmp/theirs is of user 65534"));
  EXPECT_EQ(Trouble(Make("tmp/ours", 0755, 0)), "");
  EXPECT_THAT(CheckFolders(root_ + "/tmp/agent.sock", true).users,
              Not(Contains(kOther)));
}

TEST_F(SafeFoldersTest, SecALinkIsNoWayAround) {
  if (geteuid() != 0) GTEST_SKIP() << "needs to be root to give it away";
  Make("tmp", 01777, 0);
  Make("tmp/theirs", 0755, kOther);
  const std::string ours = Make("run", 0755, 0);
  // Ours leads to theirs, and theirs to ours.
  ASSERT_EQ(symlink((root_ + "/tmp/theirs").c_str(), (ours + "/l").c_str()), 0);
  EXPECT_THAT(Trouble(ours + "/l"), HasSubstr("is of user 65534"));
  const std::string link = root_ + "/tmp/link";
  ASSERT_EQ(symlink(ours.c_str(), link.c_str()), 0);
  EXPECT_EQ(Trouble(link), "");
  ASSERT_EQ(lchown(link.c_str(), kOther, kOther), 0);
  EXPECT_THAT(Trouble(link), HasSubstr("is of user 65534"));
}

}  // namespace
}  // namespace pactrain::base
