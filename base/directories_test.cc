#include "base/directories.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/test_folder.h"
#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(stat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

TEST(MakeDirectoriesTest, AllThatAreMissingForTheOwnerAlone) {
  const std::string folder = MakeTestFolder();
  const mode_t before = umask(0);
  EXPECT_TRUE(MakeDirectories(folder + "/a/b/c"));
  umask(before);
  for (const char* const made : {"/a", "/a/b", "/a/b/c"}) {
    EXPECT_EQ(ModeOf(folder + made), 0700u) << made;
  }
}

TEST(MakeDirectoriesTest, WhatIsThereStaysAsItIs) {
  const std::string folder = MakeTestFolder() + "/there";
  ASSERT_EQ(mkdir(folder.c_str(), 0755), 0);
  const mode_t mode = ModeOf(folder);
  EXPECT_TRUE(MakeDirectories(folder));
  EXPECT_EQ(ModeOf(folder), mode);
  EXPECT_TRUE(MakeDirectories("/"));
  EXPECT_TRUE(MakeDirectories(folder + "/below/"));
}

TEST(MakeDirectoriesTest, ErrnoSaysWhyNot) {
  const std::string file = MakeTestFolder() + "/file";
  std::ofstream(file) << "here";
  EXPECT_FALSE(MakeDirectories(file + "/below"));
  EXPECT_EQ(errno, ENOTDIR);
}

}  // namespace
}  // namespace pactrain::base
