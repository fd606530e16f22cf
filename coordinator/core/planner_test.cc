#include "coordinator/core/planner.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "protocol/limits.h"

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

// What a site's access link carries, in sums, and the longest of them.
double Load(const protocol::Plan& plan, size_t site, size_t sites) {
  size_t root = 0;
  for (const auto& tree : plan.trees) root += tree.parent[site] == site;
  const double share =
      static_cast<double>(root) / static_cast<double>(plan.trees.size());
  return 1 + share * static_cast<double>(sites - 2);
}

double Longest(const protocol::Plan& plan, const std::vector<double>& rates) {
  double longest = 0;
  for (size_t site = 0; site < rates.size(); ++site) {
    longest = std::max(longest, Load(plan, site, rates.size()) / rates[site]);
  }
  return longest;
}

TEST(Planner, FasterSitesAreRootsMoreOften) {
  const auto plan =
      MakePlan({"a", "b", "c"}, {}, {{"a", 1e6}, {"b", 1e6}, {"c", 1.2e6}});
  // a and b: 1 + w / 1; c: (1 + v) / 1.2; equal at w = 0.25, v = 0.5.
  EXPECT_NEAR(Longest(plan, {1e6, 1e6, 1.2e6}), 1.25e-6, 0.04e-6);
  // The first turns, too, are spread: a bucket may have few chunks.
  EXPECT_EQ(plan.trees[0].parent[0], 2);
}

TEST(Planner, ASlowSiteIsNoRoot) {
  const auto plan = MakePlan({"a", "b", "c", "d"}, {}, {{"b", 1e6}});
  EXPECT_THAT(plan.trees, SizeIs(4)) << "who is not named is as fast";
  const auto slow =
      MakePlan({"a", "b", "c", "d"}, {}, {{"a", 1e8}, {"b", 1e6}});
  EXPECT_EQ(Load(slow, 1, 4), 1) << "its link carries the sum once";
  const auto fast =
      MakePlan({"a", "b", "c"}, {}, {{"a", 1e6}, {"b", 1e9}, {"c", 1e6}});
  ASSERT_THAT(fast.trees, SizeIs(1)) << "one that is much faster is the root";
  EXPECT_THAT(fast.trees[0].parent, ElementsAre(1, 1, 1));
}

// Against every split of the turns among three sites.
TEST(Planner, TheLongestLinkIsAsShortAsItCanBe) {
  for (const double b : {1.0, 1.1, 1.5, 1.9, 3.0}) {
    for (const double c : {1.0, 1.3, 2.0}) {
      const std::vector<double> rates = {1, b, c};
      const auto plan =
          MakePlan({"a", "b", "c"}, {}, {{"a", 1}, {"b", b}, {"c", c}});
      const double turns = protocol::kMaxSites;
      double best = 1e9;
      for (int x = 0; x <= turns; ++x) {
        for (int y = 0; x + y <= turns; ++y) {
          best = std::min(best, std::max({1 + x / turns, (1 + y / turns) / b,
                                          (1 + (turns - x - y) / turns) / c}));
        }
      }
      // With equal rates each is a third of the time the root, not 11 of 32.
      EXPECT_LE(Longest(plan, rates), best + 1e-9) << b << " " << c;
    }
  }
}

TEST(Planner, RatesAreCheckedAndNeedNoLinks) {
  EXPECT_OK(CheckSiteRates({{"a", 1e6}}, {}));
  const auto refused = [](const SiteRates& rates, const Links& links,
                          const char* why) {
    EXPECT_THAT(CheckSiteRates(rates, links),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refused({{"a", 1e6}}, {{"a", "b"}}, "links are given, too");
  refused({{"B b", 1e6}}, {}, "site: ");
  SiteRates many;
  for (int i = 0; i <= protocol::kMaxSites; ++i) {
    many["s" + std::to_string(i)] = 1e6;
  }
  refused(many, {}, "at most 32");
}

TEST(OddSiteRates, NamesASiteWithoutARateBesideARateWithoutASite) {
  const std::vector<std::string> sites = {"a", "b"};
  EXPECT_FALSE(OddSiteRates(sites, {}).has_value());
  EXPECT_FALSE(OddSiteRates(sites, {{"a", 1e6}}).has_value());
  EXPECT_FALSE(
      OddSiteRates(sites, {{"a", 1e6}, {"b", 1e6}, {"c", 1e6}}).has_value());
  EXPECT_THAT(OddSiteRates(sites, {{"a", 1e6}, {"bb", 1e6}}).value_or(""),
              HasSubstr("no rate for b, which counts as the fastest, but one "
                        "for bb"));
}

TEST(Planner, PlansAreToldInWords) {
  const auto text = [](const std::vector<std::string>& sites,
                       const Links& links, const SiteRates& rates = {}) {
    return PlanText(sites, MakePlan(sites, links, rates));
  };
  EXPECT_EQ(text({"a"}, {}), "one site: nothing crosses a link");
  EXPECT_EQ(text({"a", "b"}, {}), "a and b swap");
  EXPECT_EQ(text({"a", "b", "c"}, {{"a", "b"}, {"b", "c"}}),
            "up to the root b: a->b, c->b");
  EXPECT_EQ(text({"a", "b", "c"}, {}),
            "the root takes turns: a 1/3, b 1/3, c 1/3 of the chunks");
  EXPECT_EQ(text({"a", "b", "c"}, {}, {{"a", 1e6}, {"b", 1e6}, {"c", 1.5e6}}),
            "the root takes turns: a 5/32, b 4/32, c 23/32 of the chunks");
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
