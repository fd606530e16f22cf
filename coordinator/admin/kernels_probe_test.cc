#include "coordinator/admin/kernels_probe.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kLibrary[] = "trainer/libpactrain_trainer.so";

TEST(KernelsProbe, TheLibrarySaysWhatItCanDoHere) {
  const absl::StatusOr<Kernels> kernels = AskKernels(kLibrary);
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  if (kernels->can_run) {
    EXPECT_THAT(kernels->words, StartsWith("GPU 0, "));
  } else {
    EXPECT_THAT(kernels->words,
                AnyOf(HasSubstr("driver"), HasSubstr("built without nvcc"),
                      HasSubstr("compute capability")));
  }
}

TEST(KernelsProbe, WhatIsNoTrainerLibraryIsNamed) {
  EXPECT_THAT(AskKernels("libm.so.6").status().message(),
              HasSubstr("libm.so.6 is no trainer library"));
  EXPECT_THAT(AskKernels("/no/such.so").status().message(),
              HasSubstr("the trainer library does not load: /no/such.so"));
}

TEST(KernelsProbe, ANamedLibraryGoesBeforeThatBesideTheProgram) {
  EXPECT_EQ(FindTrainerLibrary("/a/b.so").value(), "/a/b.so");
  EXPECT_TRUE(absl::IsNotFound(FindTrainerLibrary("").status()));
}

}  // namespace
}  // namespace pactrain::coordinator
