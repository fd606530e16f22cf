// Whose folders lie above a socket. As root folders of others are real.
#include "base/safe_folders.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
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

class GuardedTest : public SafeFoldersTest {
 protected:
  // Why the file is not guarded, there by `path`.
  static std::string Why(const std::string& path) {
    struct stat about = {};
    EXPECT_EQ(stat(path.c_str(), &about), 0) << path;
    return WhyNotGuarded(path, about);
  }
  static std::string Write(const std::string& path, mode_t mode = 0644) {
    std::ofstream(path) << "run: []";
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
};

TEST_F(GuardedTest, sec_WhereALinkLeadsCountsToo) {
  const std::string own = Make("own", 0755, geteuid());
  const std::string file = Write(own + "/policy.yaml");
  EXPECT_EQ(Why(file), "");
  std::filesystem::create_symlink("policy.yaml", own + "/good");
  EXPECT_EQ(Why(own + "/good"), "");
  const std::string open = Make("open", 0777, geteuid());
  Write(open + "/policy.yaml");
  std::filesystem::create_symlink("../open/policy.yaml", own + "/link");
  EXPECT_THAT(Why(own + "/link"), HasSubstr("others may write in "));
  std::filesystem::create_symlink("link", own + "/twice");
  EXPECT_THAT(Why(own + "/twice"), HasSubstr("others may write in "));
  // Another's link where all may make one.
  if (geteuid() != 0) GTEST_SKIP() << "needs to be root to give it away";
  const std::string sticky = Make("sticky", 01777, geteuid());
  std::filesystem::create_symlink(file, sticky + "/link");
  EXPECT_EQ(Why(sticky + "/link"), "");
  ASSERT_EQ(lchown((sticky + "/link").c_str(), kOther, kOther), 0);
  EXPECT_THAT(Why(sticky + "/link"), HasSubstr("is of user 65534"));
}

TEST_F(GuardedTest, sec_OfGroupsOnlyTheUsersOwnMayWrite) {
  const std::string file = Write(root_ + "/policy.yaml", 0664);
  if (geteuid() != 0) GTEST_SKIP() << "needs to be root to give it away";
  EXPECT_EQ(Why(file), "");  // Of group 0.
  ASSERT_EQ(chown(file.c_str(), 0, 100), 0);
  EXPECT_THAT(Why(file), HasSubstr("chmod go-w " + file));
  ASSERT_EQ(setegid(100), 0);  // Which is not this user's alone.
  EXPECT_THAT(Why(file), HasSubstr("chmod go-w " + file));
  ASSERT_EQ(setegid(0), 0);
  // One more user may own it, as root's pactrain-admin finds a daemon's key,
  // with his own group, but not where all may put something.
  ASSERT_EQ(chown(file.c_str(), 1234, 1234), 0);
  EXPECT_EQ(Why(file), "");
  const std::string theirs =
      Write(Make("sticky", 01777, geteuid()) + "/policy.yaml");
  ASSERT_EQ(chown(theirs.c_str(), 1234, 1234), 0);
  EXPECT_EQ(Why(theirs), "it is of user 1234; run: chown root " + theirs);
}

// As Kubernetes mounts a ConfigMap: all may write, and nobody can.
TEST_F(GuardedTest, WhatIsMountedReadOnlyIsWrittenByNobody) {
  if (unshare(CLONE_NEWNS) != 0) GTEST_SKIP() << "no mounts for this user";
  ASSERT_EQ(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
  const std::string map = Make("map", 0777, geteuid());
  ASSERT_EQ(mount("none", map.c_str(), "tmpfs", 0, "mode=0777"), 0);
  ASSERT_EQ(mkdir((map + "/..1").c_str(), 0755), 0);
  Write(map + "/..1/policy.yaml");
  std::filesystem::create_symlink("..1", map + "/..data");
  std::filesystem::create_symlink("..data/policy.yaml", map + "/policy.yaml");
  EXPECT_THAT(Why(map + "/policy.yaml"), HasSubstr("others may write in "));
  ASSERT_EQ(
      mount("none", map.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "mode=0777"),
      0);
  EXPECT_EQ(Why(map + "/policy.yaml"), "");
  umount(map.c_str());
}

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
