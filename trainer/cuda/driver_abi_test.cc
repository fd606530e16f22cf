// What driver.h says of the driver's functions, beside NVIDIA's cuda.h. Skipped
// where there is none; `make build-cuda` brings one.
#include <type_traits>

#include "gtest/gtest.h"
#include "trainer/cuda/device_kernels.h"
#include "trainer/cuda/driver.h"
#if __has_include(<cuda.h>)
#include <cuda.h>
#endif

namespace pactrain::trainer::cuda {
namespace {

#if __has_include(<cuda.h>)

// Whether a caller that knows one passes and gets what the other means: numbers
// of the same size (an enum is one), and pointers.
template <typename A, typename B>
constexpr bool IsSameInAbi() {
  if constexpr (std::is_pointer_v<A> || std::is_pointer_v<B>) {
    return std::is_pointer_v<A> && std::is_pointer_v<B>;
  } else {
    return sizeof(A) == sizeof(B) && !std::is_floating_point_v<A> &&
           !std::is_floating_point_v<B>;
  }
}

template <typename Ours, typename Theirs>
struct IsSame;
template <typename... Ours, typename... Theirs>
struct IsSame<int (*)(Ours...), CUresult (*)(Theirs...)> {
  static constexpr bool kValue = [] {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
      return false;
    } else {
      return (IsSameInAbi<Ours, Theirs>() && ...);
    }
  }();
};

// cuda.h gives some functions another name by a macro, as cuMemAlloc_v2.
#define PACTRAIN_TEXT(name) #name
#define PACTRAIN_EXPECT_SAME(name)                                       \
  EXPECT_TRUE(                                                           \
      (IsSame<decltype(DriverCalls::name), decltype(&::name)>::kValue)); \
  EXPECT_STREQ(PACTRAIN_TEXT(name), #name)

TEST(DriverAbiTest, FunctionsAreThoseOfCudaH) {
  PACTRAIN_EXPECT_SAME(cuInit);
  PACTRAIN_EXPECT_SAME(cuDriverGetVersion);
  PACTRAIN_EXPECT_SAME(cuDeviceGetCount);
  PACTRAIN_EXPECT_SAME(cuDeviceGet);
  PACTRAIN_EXPECT_SAME(cuDeviceGetName);
  PACTRAIN_EXPECT_SAME(cuDeviceGetAttribute);
  PACTRAIN_EXPECT_SAME(cuDeviceGetUuid_v2);
  PACTRAIN_EXPECT_SAME(cuCtxGetDevice);
  PACTRAIN_EXPECT_SAME(cuCtxGetCurrent);
  PACTRAIN_EXPECT_SAME(cuCtxSetCurrent);
  PACTRAIN_EXPECT_SAME(cuStreamQuery);
  PACTRAIN_EXPECT_SAME(cuGetErrorName);
  PACTRAIN_EXPECT_SAME(cuModuleLoadData);
  PACTRAIN_EXPECT_SAME(cuModuleUnload);
  PACTRAIN_EXPECT_SAME(cuModuleGetFunction);
  PACTRAIN_EXPECT_SAME(cuLaunchKernel);
  EXPECT_FALSE((IsSame<decltype(DriverCalls::cuInit),
                       decltype(&::cuModuleUnload)>::kValue));
  EXPECT_EQ(sizeof(DevicePointer), sizeof(CUdeviceptr));
  EXPECT_EQ(sizeof(Stream), sizeof(CUstream));
}

TEST(DriverAbiTest, NumbersAreThoseOfCudaH) {
  EXPECT_EQ(kCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  EXPECT_EQ(kCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  EXPECT_EQ(kErrorNoDevice, CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(kErrorNoBinary, CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(kErrorNotReady, CUDA_ERROR_NOT_READY);
}

#else

TEST(DriverAbiTest, FunctionsAreThoseOfCudaH) {
  GTEST_SKIP() << "no cuda.h without nvcc; `make build-cuda` installs one";
}

#endif

}  // namespace
}  // namespace pactrain::trainer::cuda
