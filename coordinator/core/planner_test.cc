#include "coordinator/core/planner.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(Planner, OneSiteIsATreeOfOne) {
  const auto plan = MakePlan({"a"}, {});
  EXPECT_FALSE(plan.swap);
  ASSERT_THAT(plan.trees, SizeIs(1));
  EXPECT_THAT(plan.trees[0].parent, ElementsAre(0));
}

TEST(Planner, TwoSitesSwap) {
  const auto plan = MakePlan({"a", "b"}, {{"a", "b"}});
  EXPECT_TRUE(plan.swap);
  EXPECT_TRUE(plan.trees.empty());
}

TEST(Planner, AChainHasItsMiddleAsRoot) {
  const auto plan = MakePlan({"a", "b", "c"}, {{"a", "b"}, {"b", "c"}});
  ASSERT_THAT(plan.trees, SizeIs(1));
  EXPECT_THAT(plan.trees[0].parent, ElementsAre(1, 1, 1));
  // Whatever the names' order.
  const auto other = MakePlan({"a", "b", "c"}, {{"b", "a"}, {"a", "c"}});
  EXPECT_THAT(other.trees[0].parent, ElementsAre(0, 0, 0));
}

TEST(Planner, ALongChainGoesSiteBySite) {
  const auto plan = MakePlan({"a", "b", "c", "d", "e"},
                             {{"a", "b"}, {"b", "c"}, {"c", "d"}, {"d", "e"}});
  EXPECT_THAT(plan.trees[0].parent, ElementsAre(1, 2, 2, 2, 3));
}

TEST(Planner, ASiteWithoutAgentsIsPassedThrough) {
  const auto plan =
      MakePlan({"a", "c", "d"}, {{"a", "b"}, {"b", "c"}, {"c", "d"}});
  EXPECT_THAT(plan.trees[0].parent, ElementsAre(1, 1, 1));
}

TEST(Planner, KnowsWhichSitesTheLinksName) {
  const Links links = {{"a", "b"}, {"b", "c"}};
  EXPECT_TRUE(IsLinked("c", links));
  EXPECT_FALSE(IsLinked("z", links));
  EXPECT_EQ(LinksText(links), "a-b, b-c");
}

TEST(Planner, WithoutLinksEverySiteIsARootInTurn) {
  const auto plan = MakePlan({"a", "b", "c"}, {});
  ASSERT_THAT(plan.trees, SizeIs(3));
  for (uint16_t root = 0; root < 3; ++root) {
    EXPECT_THAT(plan.trees[root].parent, ElementsAre(root, root, root));
  }
}

TEST(Planner, LinksMustBeOneTree) {
  EXPECT_OK(CheckLinks({}));
  EXPECT_OK(CheckLinks({{"a", "b"}, {"c", "d"}, {"b", "c"}}));
  const auto refused = [](const Links& links, const char* why) {
    EXPECT_THAT(CheckLinks(links),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refused({{"a", "b"}, {"b", "c"}, {"c", "a"}}, "not one tree");
  refused({{"a", "b"}, {"c", "d"}}, "not one tree");
  refused({{"a", "b"}, {"b", "a"}}, "the link 'b-a' is there twice");
  refused({{"a", "a"}}, "with itself");
  refused({{"a", "B b"}}, "site: ");
  Links many;
  for (int i = 0; i < 40; ++i) many.push_back({"hub", "s" + std::to_string(i)});
  refused(many, "at most 32");
}

}  // namespace
}  // namespace pactrain::coordinator
