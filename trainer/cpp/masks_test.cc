// Parameters and mask sets. The digests are what the Python client gives for
// the same model, so that both can train together.
#include "trainer/cpp/masks.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/cpp/parameters.h"

namespace pactrain {
namespace {

using ::testing::ElementsAre;

// torch.nn.Sequential(Linear(3, 4), Linear(4, 2) in bfloat16).
ParameterTable Table() {
  return ParameterTable("Sequential", {{.name = "0.weight", .shape = {4, 3}},
                                       {.name = "0.bias", .shape = {4}},
                                       {"1.weight", {2, 4}, DType::kBfloat16},
                                       {"1.bias", {2}, DType::kBfloat16}});
}

// Elements 1 and 11 of "0.weight" are dropped.
MaskSet TwoDropped() {
  Mask kept(12, 1);
  kept[1] = kept[11] = 0;
  return MaskSet(Table(), {kept});
}

TEST(ParameterTableTest, IsNamedAsByThePythonClient) {
  EXPECT_EQ(
      Table().Summary(),
      "Sequential: 4 parameters of bfloat16 (2) and float32 (2), 26 elements");
  EXPECT_EQ(Table().ModelDigest().ToString(),
            "9dc6cb650d19ba610238373d0366c10e");
}

TEST(ParameterTableTest, RefusesAModelWithoutParameters) {
  EXPECT_THROW(ParameterTable("Empty", {}), InvalidArgument);
}

TEST(MaskSetTest, HasThePythonClientsDigest) {
  EXPECT_EQ(TwoDropped().digest().ToString(),
            "8870b5ec4c9c94c6e3396dbe26cdc6f5");
  EXPECT_EQ(TwoDropped().kept(), 24u);
}

TEST(MaskSetTest, TheKindIsPartOfTheDigest) {
  Mask kept(12, 1);
  kept[1] = kept[11] = 0;
  const MaskSet frozen(Table(), {kept}, {true, true});
  EXPECT_TRUE(frozen.is_frozen(0));
  EXPECT_FALSE(frozen.is_frozen(1)) << "it is kept whole";
  EXPECT_EQ(frozen.digest().ToString(), "d21672b15fe547c8738d9762bfbbdc4e");
}

TEST(MaskSetTest, OneThatKeepsAllHasNoDigest) {
  const MaskSet set(Table(), {Mask(12, 1)}, {true});
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(set.digest(), Digest());
  EXPECT_EQ(set.kept(), 26u);
}

TEST(MaskSetTest, InsideMeansThatNothingElseIsKept) {
  const MaskSet two = TwoDropped();
  Mask three(12, 1);
  three[1] = three[5] = three[11] = 0;
  const MaskSet smaller(Table(), {three});
  const MaskSet all(Table(), {});
  EXPECT_TRUE(smaller.IsInside(two));
  EXPECT_FALSE(two.IsInside(smaller));
  EXPECT_TRUE(two.IsInside(all));
  EXPECT_FALSE(all.IsInside(two));
}

TEST(MaskSetTest, GivesBitmapsByBucket) {
  const Layout layout(Table(), 25 << 20);
  const BucketMasks masks = TwoDropped().ForLayout(Table(), layout);
  EXPECT_THAT(masks.elements, ElementsAre(10, 16));
  EXPECT_THAT(masks.bitmaps,
              ElementsAre(ElementsAre(0xff, 0x03), ElementsAre(0xfd, 0xf7)));
}

TEST(PackTest, IsUndoneByUnpack) {
  const Mask mask = {1, 0, 0, 1, 1, 0, 1, 0, 0, 1};
  EXPECT_EQ(internal::Unpack(internal::Pack(mask), mask.size()), mask);
}

}  // namespace
}  // namespace pactrain
