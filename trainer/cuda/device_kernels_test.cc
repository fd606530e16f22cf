#include "trainer/cuda/device_kernels.h"

#include <dlfcn.h>

#include <cstring>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/mask_image.h"
#include "kernels/cuda/shapes.h"
#include "kernels/variants.h"
#include "trainer/cuda/fake_driver.h"

namespace pactrain::trainer::cuda {
namespace {

using pactrain::cuda::BlockTotals;
using pactrain::cuda::DeviceCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kLibrary[] = "trainer/cuda/libfake_cuda.so";
constexpr unsigned char kFatbin[] = {1};
constexpr int kArchitectures[] = {80, 86, 90};
constexpr DeviceCode kCode = {kFatbin, 13000, kArchitectures, 80};

template <typename Result>
Reason ReasonOf(const Result& result) {
  return std::get<CudaError>(result).reason;
}
template <typename Result>
std::string TextOf(const Result& result) {
  return std::get<CudaError>(result).text;
}

class DeviceKernelsTest : public ::testing::Test {
 protected:
  DeviceKernelsTest() {
    library_ = dlopen(kLibrary, RTLD_NOW | RTLD_NODELETE);
    EXPECT_NE(library_, nullptr) << dlerror();
    fake_ = reinterpret_cast<FakeDriverOf*>(dlsym(library_, kFakeDriverOf))();
    *fake_ = FakeDriver();
  }
  ~DeviceKernelsTest() override { dlclose(library_); }

  std::shared_ptr<const Driver> LoadDriver() {
    return std::get<std::shared_ptr<const Driver>>(Driver::Load(kLibrary));
  }
  auto LoadKernels() { return DeviceKernels::Load(LoadDriver(), kCode); }
  std::unique_ptr<DeviceKernels> Kernels() {
    return std::get<std::unique_ptr<DeviceKernels>>(LoadKernels());
  }

  void* library_;
  FakeDriver* fake_;
};

DevicePointer At(const void* memory) {
  return reinterpret_cast<DevicePointer>(memory);
}

TEST_F(DeviceKernelsTest, LaunchesGiveTheBitsOfTheCpuOnTheCallersStream) {
  const auto kernels = Kernels();
  int stream = 0;
  std::mt19937 random(5);
  for (uint32_t elements : {1u, 1025u, 9000u}) {
    std::vector<uint8_t> bitmap((elements + 7) / 8);
    for (uint8_t& byte : bitmap) byte = static_cast<uint8_t>(random());
    const kernels::MaskPlan plan(bitmap.data(), elements);
    const std::vector<uint32_t> image = pactrain::cuda::MaskImage(plan);
    std::vector<float> in(elements);
    for (float& x : in) x = static_cast<float>(random() % 5) - 2;
    std::vector<uint16_t> narrow(elements);
    kernels::reference::ToBf16(in.data(), elements, narrow.data());

    for (bool masked : {true, false}) {
      const std::vector<uint8_t> all(bitmap.size(), 0xff);
      const kernels::MaskPlan whole(all.data(), elements);
      const kernels::MaskPlan& used = masked ? plan : whole;
      const DeviceMask mask = {masked ? At(image.data()) : 0, elements};
      std::vector<float> wanted(used.kept());
      const uint64_t outside = kernels::reference::CompactAndCount(
          used, AllTiles(used), in.data(), wanted.data());
      std::vector<float> wanted_out(elements);
      kernels::reference::ExpandDivide(used, AllTiles(used), wanted.data(), 3,
                                       wanted_out.data());
      std::vector<uint16_t> wanted_narrow(elements);
      kernels::reference::ToBf16(wanted_out.data(), elements,
                                 wanted_narrow.data());
      for (ElementType type : {ElementType::kFloat32, ElementType::kBfloat16}) {
        const bool wide = type == ElementType::kFloat32;
        std::vector<float> packed(used.kept());
        std::vector<BlockTotals> totals(pactrain::cuda::BlocksOf(elements));
        EXPECT_FALSE(kernels->Compact(
            mask, type, wide ? At(in.data()) : At(narrow.data()), true,
            At(packed.data()), At(totals.data()), &stream));
        EXPECT_EQ(packed, wanted);
        uint64_t counted = 0;
        for (const BlockTotals& block : totals) counted += block.outside;
        EXPECT_EQ(counted, outside);

        EXPECT_FALSE(kernels->Compact(
            mask, type, wide ? At(in.data()) : At(narrow.data()), false,
            At(packed.data()), At(totals.data()), &stream));
        EXPECT_EQ(packed, wanted);
        EXPECT_EQ(totals[0].outside, 0u);

        std::vector<float> out(elements, 9);
        std::vector<uint16_t> narrow_out(elements, 9);
        EXPECT_FALSE(kernels->ExpandDivide(
            mask, type, At(packed.data()), 3,
            wide ? At(out.data()) : At(narrow_out.data()), &stream));
        if (wide) {
          EXPECT_EQ(out, wanted_out);
        } else {
          EXPECT_EQ(narrow_out, wanted_narrow);
        }
        EXPECT_EQ(fake_->stream, &stream);
      }
    }
  }
}

TEST_F(DeviceKernelsTest, ALaunchIsTheOnlyCall) {
  const auto kernels = Kernels();
  fake_->calls.clear();
  float in = 1, out = 0;
  BlockTotals totals;
  EXPECT_FALSE(kernels->Compact({0, 1}, ElementType::kFloat32, At(&in), true,
                                At(&out), At(&totals), nullptr));
  EXPECT_FALSE(kernels->ExpandDivide({0, 1}, ElementType::kFloat32, At(&out), 2,
                                     At(&in), nullptr));
  EXPECT_THAT(fake_->calls, ElementsAre("cuLaunchKernel", "cuLaunchKernel"));
}

TEST_F(DeviceKernelsTest, AnEmptyBucketNeedsNoLaunch) {
  const auto kernels = Kernels();
  fake_->calls.clear();
  EXPECT_FALSE(
      kernels->Compact({}, ElementType::kFloat32, 0, true, 0, 0, nullptr));
  EXPECT_FALSE(
      kernels->ExpandDivide({}, ElementType::kBfloat16, 0, 1, 0, nullptr));
  EXPECT_TRUE(fake_->calls.empty());
}

TEST_F(DeviceKernelsTest, WhatCannotBeIsRefusedInWords) {
  const auto kernels = Kernels();
  fake_->calls.clear();
  const DeviceMask large = {0, pactrain::cuda::kMaxElements + 1};
  for (const auto& error :
       {kernels->Compact(large, ElementType::kFloat32, 0, true, 0, 0, nullptr),
        kernels->ExpandDivide(large, ElementType::kFloat32, 0, 1, 0,
                              nullptr)}) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->reason, Reason::kInvalidArgument);
    EXPECT_THAT(error->text, HasSubstr("2147483648 elements; allowed are"));
  }
  const auto nobody =
      kernels->ExpandDivide({0, 1}, ElementType::kFloat32, 0, 0, 0, nullptr);
  ASSERT_TRUE(nobody);
  EXPECT_EQ(nobody->text, "world_size is 0; allowed are 1 and more");
  EXPECT_TRUE(fake_->calls.empty());
}

TEST_F(DeviceKernelsTest, AFailedLaunchNamesTheDriversError) {
  const auto kernels = Kernels();
  fake_->failing = "cuLaunchKernel";
  fake_->error = 700;
  const auto error =
      kernels->ExpandDivide({0, 1}, ElementType::kFloat32, 0, 1, 0, nullptr);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->reason, Reason::kDriverError);
  EXPECT_EQ(error->text, "cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (700)");
}

TEST_F(DeviceKernelsTest, TheModuleGoesWithTheKernels) {
  auto kernels = Kernels();
  EXPECT_EQ(fake_->modules, 1);
  EXPECT_EQ(fake_->image, kFatbin);
  kernels.reset();
  EXPECT_EQ(fake_->modules, 0);
  fake_->failing = "cuModuleGetFunction";
  fake_->error = 500;
  EXPECT_EQ(ReasonOf(LoadKernels()), Reason::kDriverError);
  EXPECT_EQ(fake_->modules, 0);
}

TEST_F(DeviceKernelsTest, LoadingSaysWhyItCannotBe) {
  EXPECT_EQ(ReasonOf(DeviceKernels::Load(LoadDriver(), DeviceCode())),
            Reason::kNotBuilt);
  fake_->has_context = false;
  EXPECT_EQ(ReasonOf(LoadKernels()), Reason::kNoDevice);
  EXPECT_THAT(TextOf(LoadKernels()),
              HasSubstr("cuCtxGetDevice: CUDA_ERROR_INVALID_CONTEXT (201)"));
  *fake_ = FakeDriver();
  fake_->capabilities = {90, 75};  // The last one is this thread's.
  EXPECT_EQ(ReasonOf(LoadKernels()), Reason::kNoCode);
  *fake_ = FakeDriver();
  fake_->version = 12080;
  EXPECT_EQ(ReasonOf(LoadKernels()), Reason::kDriverTooOld);
  *fake_ = FakeDriver();
  fake_->failing = "cuModuleLoadData";
  fake_->error = 209;
  EXPECT_EQ(ReasonOf(LoadKernels()), Reason::kNoCode);
  fake_->error = 999;
  EXPECT_EQ(ReasonOf(LoadKernels()), Reason::kDriverError);
  EXPECT_EQ(TextOf(LoadKernels()),
            "cuModuleLoadData: an error without a name (999)");
}

TEST_F(DeviceKernelsTest, AMachineWithoutDriverIsToldSo) {
  const auto none = Driver::Load("libno_such_driver.so.1");
  EXPECT_EQ(ReasonOf(none), Reason::kNoDriver);
  EXPECT_THAT(TextOf(none), HasSubstr("no NVIDIA driver (libno_such_driver"));
  const auto other = Driver::Load("libm.so.6");
  EXPECT_EQ(ReasonOf(other), Reason::kNoDriver);
  EXPECT_THAT(TextOf(other), HasSubstr("has no cuInit"));
  fake_->failing = "cuInit";
  fake_->error = 100;
  EXPECT_EQ(ReasonOf(Driver::Load(kLibrary)), Reason::kNoDevice);
  fake_->error = 803;
  EXPECT_EQ(ReasonOf(Driver::Load(kLibrary)), Reason::kNoDriver);
  fake_->failing = "cuDriverGetVersion";
  EXPECT_EQ(ReasonOf(Driver::Load(kLibrary)), Reason::kNoDriver);
}

TEST(CheckCodeTest, MachineCodeRunsOnItsMajorAndPtxOnNewerOnes) {
  EXPECT_FALSE(CheckCode(kCode, 13000, 80));
  EXPECT_FALSE(CheckCode(kCode, 13000, 87));   // By 8.6's.
  EXPECT_FALSE(CheckCode(kCode, 13000, 121));  // By PTX.
  EXPECT_EQ(CheckCode(kCode, 13000, 75)->text,
            "the GPU has compute capability 7.5, the kernels are for 8.0, 8.6, "
            "9.0 and newer");
  DeviceCode no_ptx = kCode;
  no_ptx.ptx = 0;
  EXPECT_EQ(CheckCode(no_ptx, 13000, 121)->reason, Reason::kNoCode);
  EXPECT_FALSE(CheckCode(no_ptx, 13000, 90));
}

TEST(CheckCodeTest, AnOlderDriverOfTheSameMajorRunsMachineCodeAndNoPtx) {
  DeviceCode newer = kCode;
  newer.cuda_version = 13020;
  EXPECT_FALSE(CheckCode(newer, 13000, 90));
  EXPECT_EQ(CheckCode(newer, 13000, 120)->text,
            "the driver can do CUDA 13.0, the kernels need 13.2");
  EXPECT_EQ(CheckCode(newer, 12090, 90)->text,
            "the driver can do CUDA 12.9, the kernels need 13.0");
}

TEST_F(DeviceKernelsTest, DescribingIsOfTheThreadsGpuWhereItHasOne) {
  fake_->capabilities = {70, 90};  // The last one is the context's.
  EXPECT_EQ(std::get<std::string>(Describe(kLibrary, kCode)),
            "GPU 1, Fake 1 (9.0); driver of CUDA 13.0");
  fake_->capabilities = {90, 70};
  EXPECT_EQ(ReasonOf(Describe(kLibrary, kCode)), Reason::kNoCode);
  EXPECT_THAT(fake_->calls, testing::Each(testing::Not("cuModuleLoadData")));
}

TEST_F(DeviceKernelsTest, DescribingNamesAllGpusAndTouchesNone) {
  fake_->has_context = false;
  fake_->capabilities = {90, 120};
  EXPECT_EQ(std::get<std::string>(Describe(kLibrary, kCode)),
            "GPU 0, Fake 0 (9.0); GPU 1, Fake 1 (12.0, by PTX); driver of CUDA "
            "13.0");
  EXPECT_THAT(fake_->calls, testing::Each(testing::Not("cuModuleLoadData")));
  fake_->capabilities = {90, 70};
  EXPECT_EQ(ReasonOf(Describe(kLibrary, kCode)), Reason::kNoCode);
  EXPECT_THAT(TextOf(Describe(kLibrary, kCode)),
              HasSubstr("GPU 1, Fake 1: the GPU has compute capability 7.0"));
  fake_->capabilities = {};
  EXPECT_EQ(TextOf(Describe(kLibrary, kCode)), "the driver sees no GPU");
  EXPECT_EQ(ReasonOf(Describe("libno_such_driver.so.1", kCode)),
            Reason::kNoDriver);
  EXPECT_EQ(ReasonOf(Describe(kLibrary, DeviceCode())), Reason::kNotBuilt);
  for (const char* call : {"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName",
                           "cuDeviceGetAttribute"}) {
    *fake_ = FakeDriver();
    fake_->has_context = false;
    fake_->failing = call;
    fake_->error = 700;
    EXPECT_EQ(ReasonOf(Describe(kLibrary, kCode)), Reason::kDriverError);
    EXPECT_THAT(TextOf(Describe(kLibrary, kCode)), HasSubstr(call));
  }
}

}  // namespace
}  // namespace pactrain::trainer::cuda
