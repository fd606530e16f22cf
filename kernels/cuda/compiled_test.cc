// What nvcc made of the kernels keeps what their source promises. Skipped where
// there is no nvcc; `make build-cuda` brings one.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/code.h"

namespace pactrain::cuda {
namespace {

std::string Text(const std::string& name) {
  std::ifstream file("kernels/cuda/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Of each match the first group.
std::vector<std::string> All(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end;
       ++it) {
    found.push_back(it->str(it->size() - 1));
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

class CompiledTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (EmbeddedCode().fatbin.empty()) {
      GTEST_SKIP() << "built without nvcc; `make build-cuda` installs one";
    }
  }
};

TEST_F(CompiledTest, PtxHasAllKernels) {
  EXPECT_THAT(
      All(Text("kernels.ptx"), R"(\.entry (\w+))"),
      testing::ElementsAre("pactrain_compact_bf16", "pactrain_compact_fp32",
                           "pactrain_expand_divide_bf16",
                           "pactrain_expand_divide_fp32"));
}

// Each of these would give other bits than the CPU, or others at each run.
TEST_F(CompiledTest, PtxRoundsAsTheCpuDoes) {
  EXPECT_THAT(
      All(Text("kernels.ptx"),
          R"(\b((?:fma|mad|add|sub|mul|div|rcp|sqrt|ex2|atom|red)\.[\w.]*(?:f32|f64|global|shared)[\w.]*))"),
      testing::ElementsAre("add.rn.f64", "div.rn.f32", "mul.rn.f64"));
  EXPECT_THAT(Text("kernels.ptx"), testing::Not(testing::HasSubstr(".ftz")));
}

// nvcc names what is internal to a file by the folder that it runs in.
TEST_F(CompiledTest, TheFolderIsInNoName) {
  EXPECT_THAT(Text("kernels.ptx"),
              testing::Not(testing::HasSubstr("_INTERNAL_")));
}

TEST_F(CompiledTest, EveryArchitectureHasCode) {
  std::vector<std::string> wanted;
  for (int architecture : EmbeddedCode().architectures) {
    wanted.push_back("sm_" + std::to_string(architecture));
  }
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(wanted.size(), 6u);
  EXPECT_EQ(
      All(Text("kernels.log"), R"(Compiling entry function '\w+' for '(\w+)')"),
      wanted);
}

TEST_F(CompiledTest, NoKernelSpillsRegisters) {
  EXPECT_THAT(All(Text("kernels.log"), R"((\d+) bytes spill)"),
              testing::ElementsAre("0"));
  EXPECT_THAT(All(Text("kernels.log"), R"((\d+) bytes stack frame)"),
              testing::ElementsAre("0"));
}

}  // namespace
}  // namespace pactrain::cuda
