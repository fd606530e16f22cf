#include "kernels/variants.h"

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::kernels {
namespace {

TEST(VariantsTest, ReferenceComesFirstAndTheBestIsOneOfThem) {
  ASSERT_FALSE(Variants().empty());
  EXPECT_EQ(Variants().front(), &ReferenceVariant());
  EXPECT_THAT(Variants(), ::testing::Contains(&BestVariant()));
}

// Calls of these take as long as their names say, on a clock of their own.
int64_t fake_now = 0;
int64_t FakeNow() { return fake_now; }
void TakeTwo(const MaskPlan&, TileRange, const float*, float*) {
  fake_now += 2;
}
void TakeThree(const MaskPlan&, TileRange, const float*, float*) {
  fake_now += 3;
}
void TakeNineThenOne(const MaskPlan&, TileRange, const float*, float*) {
  static int calls = 0;
  fake_now += calls++ == 0 ? 9 : 1;
}

Variant CompactingBy(decltype(reference::Compact)* compact) {
  Variant variant = ReferenceVariant();
  variant.compact = compact;
  return variant;
}

TEST(FasterCompactTest, TakesTheOneWithTheShorterCall) {
  const Variant two = CompactingBy(TakeTwo), three = CompactingBy(TakeThree);
  EXPECT_EQ(&FasterCompact(two, three, FakeNow), &two);
  EXPECT_EQ(&FasterCompact(three, two, FakeNow), &two);
}

TEST(FasterCompactTest, OneSlowCallDecidesNothing) {
  const Variant two = CompactingBy(TakeTwo);
  const Variant one = CompactingBy(TakeNineThenOne);
  EXPECT_EQ(&FasterCompact(two, one, FakeNow), &one);
}

}  // namespace
}  // namespace pactrain::kernels
