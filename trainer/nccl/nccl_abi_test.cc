// What api.h says of NCCL, beside its nccl.h. Skipped where there is none.
#include <cstddef>
#include <type_traits>

#include "gtest/gtest.h"
#include "trainer/nccl/api.h"
#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

namespace pactrain::trainer::nccl {
namespace {

#if __has_include(<nccl.h>)

// Whether a caller that knows one passes and gets what the other means.
template <typename A, typename B>
constexpr bool IsSameInAbi() {
  if constexpr (std::is_pointer_v<A> || std::is_pointer_v<B>) {
    return std::is_pointer_v<A> && std::is_pointer_v<B>;
  } else {
    return sizeof(A) == sizeof(B) && std::is_class_v<A> == std::is_class_v<B>;
  }
}

template <typename Ours, typename Theirs>
struct IsSame;
template <typename R, typename... Ours, typename S, typename... Theirs>
struct IsSame<R (*)(Ours...), S (*)(Theirs...)> {
  static constexpr bool kValue = [] {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
      return false;
    } else {
      return IsSameInAbi<R, S>() && (IsSameInAbi<Ours, Theirs>() && ...);
    }
  }();
};

#define PACTRAIN_EXPECT_SAME(name) \
  EXPECT_TRUE((IsSame<decltype(Calls::name), decltype(&::name)>::kValue))

TEST(NcclAbiTest, FunctionsAreThoseOfNcclH) {
  PACTRAIN_EXPECT_SAME(ncclGetVersion);
  PACTRAIN_EXPECT_SAME(ncclGetUniqueId);
  PACTRAIN_EXPECT_SAME(ncclCommInitRankConfig);
  PACTRAIN_EXPECT_SAME(ncclCommGetAsyncError);
  PACTRAIN_EXPECT_SAME(ncclAllReduce);
  PACTRAIN_EXPECT_SAME(ncclCommDestroy);
  PACTRAIN_EXPECT_SAME(ncclCommAbort);
  PACTRAIN_EXPECT_SAME(ncclGetErrorString);
  PACTRAIN_EXPECT_SAME(ncclGetLastError);
#if NCCL_VERSION_CODE >= 22807
  PACTRAIN_EXPECT_SAME(ncclCommRevoke);
#endif
}

TEST(NcclAbiTest, StructsAndNumbersAreThoseOfNcclH) {
  EXPECT_EQ(sizeof(UniqueId), sizeof(ncclUniqueId));
  EXPECT_EQ(kSuccess, ncclSuccess);
  EXPECT_EQ(kInProgress, ncclInProgress);
  EXPECT_EQ(kFloat32, ncclFloat32);
  EXPECT_EQ(kSum, ncclSum);
  EXPECT_EQ(Config().magic, unsigned{NCCL_API_MAGIC});
  EXPECT_EQ(offsetof(Config, blocking), offsetof(ncclConfig_t, blocking));
  EXPECT_EQ(offsetof(Config, max_ctas), offsetof(ncclConfig_t, maxCTAs));
  EXPECT_EQ(offsetof(Config, net_name), offsetof(ncclConfig_t, netName));
#if NCCL_VERSION_CODE >= 22703
  EXPECT_EQ(offsetof(Config, comm_name), offsetof(ncclConfig_t, commName));
  EXPECT_EQ(offsetof(Config, nvls_ctas), offsetof(ncclConfig_t, nvlsCTAs));
#endif
}

#else

TEST(NcclAbiTest, FunctionsAreThoseOfNcclH) {
  GTEST_SKIP() << "no nccl.h; a CUDA build of torch brings one";
}

#endif

}  // namespace
}  // namespace pactrain::trainer::nccl
