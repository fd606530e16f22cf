#include "coordinator/admin/gpu_node.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

namespace fs = std::filesystem;

// A root of files with a driver, and a folder of Python packages.
class GpuNodeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Write(root_ + "/proc/driver/nvidia/version",
          "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul "
          "27 07:12:40 UTC 2025\nGCC version: 12.2.0\n");
    fs::create_directories(root_ + "/dev/shm");
    fs::create_directories(packages_);
  }
  ~GpuNodeTest() override { fs::remove_all(folder_); }

  static void Write(const fs::path& file, const std::string& text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  GpuNode Look(std::vector<std::string> environment = {}) {
    std::vector<char*> entries;
    for (std::string& entry : environment) entries.push_back(entry.data());
    entries.push_back(nullptr);
    return LookAtGpuNode(root_, packages_, entries.data());
  }

  const std::string folder_ = ::testing::TempDir() + "gpu_node";
  const std::string root_ = folder_ + "/root";
  const std::string packages_ = folder_ + "/site-packages";
};

// What a node says whose findings are one line.
GpuNode Well() {
  GpuNode node;
  node.driver = "580.65.06";
  node.nccl_file = "/x/libnccl.so.2";
  node.nccl_version = 22907;
  node.shm_bytes = uint64_t{8} << 30;
  return node;
}

auto Warns(const std::string& what, const std::string& to_do) {
  return Contains(AllOf(Field(&Finding::level, Level::kWarning),
                        Field(&Finding::what, HasSubstr(what)),
                        Field(&Finding::to_do, HasSubstr(to_do))));
}

TEST_F(GpuNodeTest, WithoutADriverNothingIsSaid) {
  fs::remove_all(root_ + "/proc");
  EXPECT_THAT(CheckGpuNode(Look({"NCCL_COMM_ID=x"})), IsEmpty());
}

TEST_F(GpuNodeTest, TheDriverIsFound) {
  EXPECT_EQ(Look().driver, "580.65.06");
  Write(root_ + "/proc/driver/nvidia/version", "something else\n");
  EXPECT_EQ(Look().driver, "of an unknown version");
}

TEST_F(GpuNodeTest, NcclIsThatOfTorchAndSaysItsVersion) {
  EXPECT_EQ(Look().nccl_file, "");
  const std::string nccl = packages_ + "/nvidia/nccl/lib/libnccl.so.2";
  Write(nccl, "no library");
  EXPECT_EQ(Look().nccl_file, nccl);
  EXPECT_EQ(Look().nccl_version, 0);
  EXPECT_THAT(CheckGpuNode(Look()).front().what, HasSubstr("is no NCCL"));
  fs::remove(nccl);
  fs::copy_file("coordinator/admin/libfake_nccl.so", nccl);
  EXPECT_EQ(Look().nccl_version, 22907);
}

TEST_F(GpuNodeTest, AnMpsServerIsFoundWhereItsVariableSays) {
  EXPECT_EQ(Look().mps, "");
  Write(root_ + "/tmp/nvidia-mps/control", "");
  EXPECT_EQ(Look().mps, "/tmp/nvidia-mps");
  EXPECT_EQ(Look({"CUDA_MPS_PIPE_DIRECTORY=/run/mps"}).mps, "");
  Write(root_ + "/run/mps/control", "");
  EXPECT_EQ(Look({"CUDA_MPS_PIPE_DIRECTORY=/run/mps"}).mps, "/run/mps");
}

TEST_F(GpuNodeTest, VariablesOfCudaAndNcclAreKept) {
  EXPECT_THAT(Look({"NCCL_DEBUG=INFO", "HOME=/", "CUDA_X="}).variables,
              SizeIs(2));
  EXPECT_TRUE(Look().shm_bytes.has_value());
}

TEST(CheckGpuNode, WhereAllIsWellThereIsOneLine) {
  const Findings findings = CheckGpuNode(Well());
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].level, Level::kOk);
  EXPECT_EQ(findings[0].what,
            "NVIDIA driver 580.65.06; NCCL 2.29.7 (/x/libnccl.so.2), which "
            "PacTrain does not use");
}

TEST(CheckGpuNode, LittleMemoryIsNamed) {
  GpuNode node = Well();
  node.shm_bytes = 64 << 20;
  node.locked_limit = 8 << 20;
  const Findings findings = CheckGpuNode(node);
  EXPECT_THAT(findings, Warns("/dev/shm has 0.1 GiB", "--shm-size"));
  EXPECT_THAT(findings, Warns("may lock 0.0 GiB", "ulimit -l"));
  node.shm_bytes.reset();
  EXPECT_THAT(CheckGpuNode(node), Warns("there is no /dev/shm", "--shm-size"));
}

TEST(CheckGpuNode, AnMpsServerIsNamed) {
  GpuNode node = Well();
  node.mps = "/tmp/nvidia-mps";
  EXPECT_THAT(CheckGpuNode(node),
              Warns("an MPS server answers at /tmp/nvidia-mps", "quit"));
}

TEST(CheckGpuNode, VariablesThatHarmAreNamedAndOthersAreNot) {
  GpuNode node = Well();
  node.variables = {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"},
                    {"NCCL_COMM_BLOCKING", "0"},
                    {"NCCL_COMM_ID", ""},
                    {"NCCL_DEBUG", "INFO"}};
  EXPECT_THAT(CheckGpuNode(node), SizeIs(1));
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"CUDA_DEVICE_MAX_CONNECTIONS", "1"},
           {"CUDA_LAUNCH_BLOCKING", "1"},
           {"NCCL_COMM_ID", "10.0.0.1:5"},
           {"NCCL_COMM_BLOCKING", "1"},
           {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}}) {
    node.variables = {{name, value}};
    EXPECT_THAT(CheckGpuNode(node), Warns(name + "=" + value + ": ", "unset"));
  }
}

}  // namespace
}  // namespace pactrain::coordinator
