#include "trainer/core/keep.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::trainer {
namespace {

using ::testing::HasSubstr;

wire::Keep Made(const std::vector<ParameterKeep>& parameters) {
  wire::Keep keep = {};
  EXPECT_TRUE(MakeKeep({5, 6}, parameters, &keep).ok());
  return keep;
}

TEST(KeepTest, TheLargestKeepTheirNamesInTheModelsOrder) {
  std::vector<ParameterKeep> parameters;
  for (uint64_t i = 0; i < wire::kKeepParameters + 3; ++i) {
    parameters.push_back({"p" + std::to_string(i), i, 100 + i});
  }
  const wire::Keep keep = Made(parameters);
  EXPECT_EQ(keep.mask_digest.hi, 5u);
  ASSERT_EQ(keep.count, wire::kKeepParameters);
  EXPECT_STREQ(keep.parameters[0].name, "p3");
  EXPECT_EQ(keep.parameters[0].kept, 3u);
  EXPECT_EQ(keep.parameters[0].elements, 103u);
  EXPECT_EQ(keep.others, 3u);
  EXPECT_EQ(keep.others_kept, 0u + 1 + 2);
  EXPECT_EQ(keep.others_elements, 100u + 101 + 102);
}

TEST(KeepTest, OfAModelWithoutParametersNothingIsSaid) {
  EXPECT_EQ(Made({}).count, 0u);
}

TEST(KeepTest, sec_ANameIsPrintableWhateverItWas) {
  const wire::Keep keep = Made({{"a\n\x1b\xc3\xa4<b>", 1, 1}, {"", 1, 1}});
  EXPECT_STREQ(keep.parameters[0].name, "a\\x0a\\x1b\\xc3\\xa4<b>");
  EXPECT_STREQ(keep.parameters[1].name, "(no name)");
}

TEST(KeepTest, sec_ALongNameKeepsItsEnd) {
  const wire::Keep keep =
      Made({{std::string(64 << 10, 'x') + ".weight", 1, 1}});
  const std::string name = keep.parameters[0].name;
  EXPECT_EQ(name.size(), wire::kNameBytes - 1);
  EXPECT_THAT(name, ::testing::StartsWith("...x"));
  EXPECT_THAT(name, ::testing::EndsWith("x.weight"));
}

TEST(KeepTest, CountsThatCannotBeAreRefusedInWords) {
  wire::Keep keep;
  const auto text = [&](const std::vector<ParameterKeep>& parameters) {
    return MakeKeep({5, 6}, parameters, &keep).text;
  };
  EXPECT_THAT(text({{"fc", 3, 2}}), HasSubstr("fc keeps 3 of 2"));
  constexpr uint64_t kHalf = uint64_t{1} << 30;
  EXPECT_THAT(text({{"a", 0, kHalf}, {"b", 0, kHalf}}),
              HasSubstr("together <= 2147483647"));
  EXPECT_THAT(text({{"a", 0, ~uint64_t{0}}, {"b", 0, 2}}),
              HasSubstr("together <= 2147483647"));
}

}  // namespace
}  // namespace pactrain::trainer
