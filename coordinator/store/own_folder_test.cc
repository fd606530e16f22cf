// Attack 8: another user of the machine prepares what a coordinator opens.
#include "coordinator/store/own_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "coordinator/store/sqlite_journal.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::StatusCode kRefused = absl::StatusCode::kFailedPrecondition;

class OwnFolderTest : public ::testing::Test {
 protected:
  OwnFolderTest()
      : top_(base::MakeTestFolder()),
        dir_(top_ + "/state"),
        other_(top_ + "/other") {
    std::ofstream(other_) << "theirs";
    chmod(other_.c_str(), 0644);
  }
  // Of `path`, as a coordinator that starts there.
  static absl::Status Start(const std::string& path) {
    return SqliteJournal::Open(path, "one").status();
  }
  static mode_t Mode(const std::string& path) {
    struct stat about = {};
    EXPECT_EQ(stat(path.c_str(), &about), 0) << path;
    return about.st_mode & 07777;
  }
  void ExpectOtherIsAsItWas() {
    EXPECT_EQ(Mode(other_), 0644u);
    std::string text;
    std::getline(std::ifstream(other_), text);
    EXPECT_EQ(text, "theirs");
  }

  const std::string top_, dir_, other_;
};

TEST_F(OwnFolderTest, ItIsMadeForItsOwnerAlone) {
  ASSERT_OK(Start(dir_));
  EXPECT_EQ(Mode(dir_), 0700u);
  ASSERT_OK(Start(dir_ + "/"));
}

TEST_F(OwnFolderTest, sec_ALinkInThePlaceOfAFileIsNotFollowed) {
  for (const char* name :
       {"journal.db", "journal.db-wal", "journal.db-shm", "lock"}) {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directory(dir_);
    std::filesystem::create_symlink(other_, dir_ + "/" + name);
    EXPECT_THAT(Start(dir_),
                StatusIs(kRefused, HasSubstr("/" + std::string(name) +
                                             " is a symbolic link")));
    ExpectOtherIsAsItWas();
  }
}

TEST_F(OwnFolderTest, sec_AFileWithASecondNameIsRefused) {
  std::filesystem::create_directory(dir_);
  std::filesystem::create_hard_link(other_, dir_ + "/journal.db");
  EXPECT_THAT(Start(dir_), StatusIs(kRefused, HasSubstr("has a second name")));
  ExpectOtherIsAsItWas();
}

TEST_F(OwnFolderTest, sec_ALinkInThePlaceOfTheFolderIsNotFollowed) {
  std::filesystem::create_directory(top_ + "/elsewhere");
  std::filesystem::create_symlink(top_ + "/elsewhere", dir_);
  for (const std::string& name : {dir_, dir_ + "/", dir_ + "//"}) {
    EXPECT_THAT(Start(name),
                StatusIs(kRefused, HasSubstr("is a symbolic link")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(top_ + "/elsewhere"));
}

// As user and group 4711: makes a symbolic link in the folder.
void LinkAsAnother(const std::string& target, const std::string& folder,
                   const char* name) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const pid_t child = fork();
  if (child == 0) {
    const bool made = setgid(4711) == 0 && setuid(4711) == 0 &&
                      symlinkat(target.c_str(), fd, name) == 0;
    _exit(made ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  close(fd);
}

TEST_F(OwnFolderTest, sec_AnotherUsersLinkInTheNameIsNotFollowed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  // As a shared folder of a group is: each may remove what is his alone.
  const std::string shared = top_ + "/shared", theirs = top_ + "/theirs";
  std::filesystem::create_directory(theirs);
  std::filesystem::create_directory(shared);
  ASSERT_EQ(chown(shared.c_str(), 0, 4711), 0);
  ASSERT_EQ(chmod(shared.c_str(), 01770), 0);
  LinkAsAnother(theirs, shared, "link");
  EXPECT_THAT(Start(shared + "/link/state"),
              StatusIs(kRefused, HasSubstr("/shared/link is of user 4711")));
  EXPECT_TRUE(std::filesystem::is_empty(theirs));
}

TEST_F(OwnFolderTest, sec_WhatOthersMayWriteIsTakenFromThem) {
  std::filesystem::create_directory(dir_);
  chmod(dir_.c_str(), 0777);
  ASSERT_OK(Start(dir_));
  EXPECT_EQ(Mode(dir_), 0755u);
}

TEST_F(OwnFolderTest, sec_AboveItOthersMayNotWrite) {
  std::filesystem::create_directory(top_ + "/open");
  chmod((top_ + "/open").c_str(), 0777);
  EXPECT_THAT(
      Start(top_ + "/open/state"),
      StatusIs(kRefused, AllOf(HasSubstr("others may write in "),
                               HasSubstr("/open and could replace it"))));
  chmod((top_ + "/open").c_str(), 01777);  // As /tmp.
  EXPECT_OK(Start(top_ + "/open/state"));
}

TEST_F(OwnFolderTest, sec_WhatBelongsToSomebodyElseIsRefused) {
  if (geteuid() != 0) {  // Then the system's own is somebody else's.
    EXPECT_THAT(Start("/usr"),
                StatusIs(kRefused, HasSubstr("belongs to user")));
    return;
  }
  ASSERT_OK(Start(dir_));
  ASSERT_EQ(chown((dir_ + "/journal.db").c_str(), 4711, 4711), 0);
  EXPECT_THAT(Start(dir_),
              StatusIs(kRefused, HasSubstr("journal.db belongs to user 4711")));
  std::filesystem::remove_all(dir_);
  std::filesystem::create_directory(dir_);
  ASSERT_EQ(chown(dir_.c_str(), 4711, 4711), 0);
  EXPECT_THAT(Start(dir_),
              StatusIs(kRefused, HasSubstr("state belongs to user 4711")));
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
  EXPECT_THAT(Start(dir_ + "/mine"),
              StatusIs(kRefused, HasSubstr("state is of user 4711")));
  // Who is nobody here is not the machine's root.
  ASSERT_EQ(chown(dir_.c_str(), 65534, 65534), 0);
  EXPECT_THAT(Start(dir_ + "/mine"),
              StatusIs(kRefused, HasSubstr("state is of user 65534")));
}

}  // namespace
}  // namespace pactrain::coordinator
