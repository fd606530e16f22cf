// Folders for the files of a test.
#ifndef PACTRAIN_BASE_TEST_FOLDER_H_
#define PACTRAIN_BASE_TEST_FOLDER_H_

#include <filesystem>
#include <string>

#include "gtest/gtest.h"

namespace pactrain::base {

// An empty one of the running test, without a slash at its end. Several of one
// test need several suffixes.
inline std::string MakeTestFolder(const std::string& suffix = "") {
  const std::string folder =
      ::testing::TempDir() + "/" +
      ::testing::UnitTest::GetInstance()->current_test_info()->name() + suffix;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TEST_FOLDER_H_
