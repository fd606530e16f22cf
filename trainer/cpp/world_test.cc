#include "trainer/cpp/world.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain {
namespace {

using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

World Of(const Variables& variables) {
  return WorldFrom([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

// Rank 1 of 2 at the second of two sites.
Variables TwoSites(Variables changes = {}) {
  changes.insert({{"RANK", "1"},
                  {"WORLD_SIZE", "2"},
                  {"PACTRAIN_SITES", "a:3,b:2"},
                  {"PACTRAIN_SITE", "b"},
                  {"PACTRAIN_JOB_ID", "job"}});
  return changes;
}

std::string ErrorOf(const Variables& variables) {
  try {
    Of(variables);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(WorldTest, ABareProcessIsAlone) {
  const World world = Of({});
  EXPECT_EQ(world.rank, 0u);
  EXPECT_EQ(world.world_size, 1u);
  EXPECT_EQ(world.site, "");
}

TEST(WorldTest, ALaunchWithoutSitesIsTheOnlyOne) {
  const World world =
      Of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"PACTRAIN_SITE", "a"}});
  EXPECT_EQ(world.rank, 1u);
  EXPECT_EQ(world.world_size, 2u);
  EXPECT_EQ(world.SitesText(), "a:2");
}

TEST(WorldTest, RanksOfASiteFollowThoseOfTheSitesBefore) {
  const World world = Of(TwoSites({{"PACTRAIN_SITES", " a:3, b:2"}}));
  EXPECT_EQ(world.rank, 4u);
  EXPECT_EQ(world.world_size, 5u);
  EXPECT_EQ(world.site, "b");
  EXPECT_EQ(world.SitesText(), "a:3,b:2");
}

TEST(WorldTest, SlurmGivesRanksUnlessTorchrunDoes) {
  const Variables slurm = {{"SLURM_PROCID", "5"},
                           {"SLURM_STEP_NUM_TASKS", "7"}};
  EXPECT_EQ(Of(slurm).rank, 5u);
  EXPECT_EQ(Of(slurm).world_size, 7u);
  Variables both = slurm;
  both.insert({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(Of(both).rank, 1u);
}

TEST(WorldTest, ABatchScriptIsNoTaskOfSrun) {
  const Variables batch = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "7"}};
  EXPECT_EQ(Of(batch).world_size, 1u);
}

TEST(WorldTest, NamesWhatDoesNotFit) {
  const auto error = [](const Variables& changes) {
    return ErrorOf(TwoSites(changes));
  };
  EXPECT_THAT(error({{"PACTRAIN_SITE", "c"}}),
              HasSubstr("PACTRAIN_SITE is 'c'; allowed are the sites in "
                        "PACTRAIN_SITES=a:3,b:2: a, b.\n"));
  EXPECT_THAT(error({{"PACTRAIN_SITE", ""}}),
              HasSubstr("PACTRAIN_SITE is not set; allowed are the sites"));
  EXPECT_THAT(error({{"PACTRAIN_JOB_ID", ""}}),
              HasSubstr("PACTRAIN_JOB_ID is not set; with several sites"));
  EXPECT_THAT(error({{"WORLD_SIZE", "3"}}),
              HasSubstr("WORLD_SIZE is 3; allowed is 2, the trainers of site "
                        "'b' in PACTRAIN_SITES=a:3,b:2."));
  EXPECT_THAT(error({{"RANK", "2"}}),
              HasSubstr("RANK is '2'; allowed are 0 to 1."));
  EXPECT_THAT(error({{"RANK", "-1"}}), HasSubstr("RANK is '-1'"));
  EXPECT_THAT(error({{"WORLD_SIZE", "1025"}}),
              HasSubstr("WORLD_SIZE is '1025'; allowed are 1 to 1024."));
  EXPECT_THAT(ErrorOf({{"RANK", "0"}}), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(ErrorOf({{"PACTRAIN_SITES", "a:1,b:2"},
                       {"PACTRAIN_SITE", "b"},
                       {"PACTRAIN_JOB_ID", "job"}}),
              HasSubstr("RANK, WORLD_SIZE and SLURM_PROCID are not set) is 1; "
                        "allowed is 2, the trainers of site 'b'"));
}

TEST(WorldTest, NamesWhatIsWrongInTheListOfSites) {
  const auto error = [](const std::string& sites) {
    return ErrorOf(TwoSites({{"PACTRAIN_SITES", sites}}));
  };
  EXPECT_THAT(error("a,b:2"), HasSubstr("PACTRAIN_SITES has 'a' in 'a,b:2'; "
                                        "allowed is 'name:trainers'"));
  EXPECT_THAT(error("a:x,b:2"), HasSubstr("PACTRAIN_SITES has 'a:x'"));
  EXPECT_THAT(error("a:1,b:2,"), HasSubstr("PACTRAIN_SITES has ''"));
  EXPECT_THAT(error("a:1,b:2,a:2"),
              HasSubstr("PACTRAIN_SITES has site 'a' twice"));
  EXPECT_THAT(error("A:1,b:2"), HasSubstr("A name in PACTRAIN_SITES is 'A'"));
  EXPECT_THAT(error("a:0,b:2"),
              HasSubstr("gives site 'a' 0 trainers; allowed are 1 to 1024."));
  EXPECT_THAT(error("a:1023,b:2"), HasSubstr("gives 1025 trainers"));
  std::string many;
  for (int i = 0; i < 32; ++i) many += "s" + std::to_string(i) + ":1,";
  EXPECT_THAT(error(many + "b:2"),
              HasSubstr("PACTRAIN_SITES has 33 sites; allowed are 1 to 32."));
}

TEST(WorldTest, AsManyRanksAndSitesAsAllowedAreTaken) {
  std::string sites;
  for (int i = 0; i < 30; ++i) sites += "s" + std::to_string(i) + ":1,";
  const World world = Of(TwoSites({{"PACTRAIN_SITES", sites + "a:992,b:2"}}));
  EXPECT_EQ(world.rank, 1023u);
  EXPECT_EQ(world.world_size, 1024u);
}

}  // namespace
}  // namespace pactrain
