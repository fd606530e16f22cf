#include "coordinator/core/norm_watch.h"

#include <limits>

#include "coordinator/core/test_cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;

constexpr double kFactor = 100;
constexpr double kUsual = 4.0;           // Squares.
constexpr double kEnormous = 4.0 * 1e6;  // A norm a thousand times as large.

// As many usual norms as are needed.
NormBand Settled() {
  NormBand band;
  for (size_t i = 0; i < NormBand::kLeast; ++i) band.Add(kUsual, kFactor);
  return band;
}

TEST(NormBand, sec_poison_norm_ANormFarAboveTheMedianIsFound) {
  NormBand band = Settled();
  EXPECT_THAT(band.Add(kEnormous, kFactor), Optional(DoubleNear(1000, 1e-6)));
  EXPECT_FALSE(band.Add(kUsual, kFactor));
  EXPECT_THAT(band.Add(std::numeric_limits<double>::max(), kFactor),
              Optional(::testing::Gt(1e100)));
}

TEST(NormBand, TheFactorIsOfNormsAndNotReachedAtIt) {
  EXPECT_FALSE(Settled().Add(kUsual * kFactor * kFactor, kFactor));
  EXPECT_TRUE(Settled().Add(kUsual * kFactor * kFactor * 1.01, kFactor));
}

TEST(NormBand, FewNormsOrZerosSayNothing) {
  NormBand band;
  for (size_t i = 0; i + 1 < NormBand::kLeast; ++i) {
    EXPECT_FALSE(band.Add(kUsual, kFactor));
  }
  EXPECT_FALSE(band.Add(kEnormous, kFactor));
  NormBand zeros;
  for (size_t i = 0; i < NormBand::kLeast; ++i) zeros.Add(0, kFactor);
  EXPECT_FALSE(zeros.Add(kUsual, kFactor));
}

// Norms that grow or shrink slowly, and single ones that are off.
TEST(NormBand, TheMedianFollowsAndIsNotMovedByAFew) {
  NormBand band = Settled();
  double squares = kUsual;
  for (int step = 0; step < 500; ++step) {
    squares *= 1.2;
    EXPECT_FALSE(band.Add(squares, kFactor)) << step;
  }
  EXPECT_LE(band.size(), NormBand::kWindow);
  NormBand attacked = Settled();
  for (size_t i = 0; i + 1 < NormBand::kLeast; ++i) {
    EXPECT_TRUE(attacked.Add(kEnormous, kFactor)) << i;
  }
}

TEST(NormBand, ALevelThatStaysIsNotAlarmedOfForEver) {
  NormBand band = Settled();
  for (size_t i = 0; i < NormBand::kWindow; ++i) band.Add(kEnormous, kFactor);
  EXPECT_FALSE(band.Add(kEnormous, kFactor));
}

// A job of two agents, whose norms are as ever; then some are not.
class NormAlarmTest : public ::testing::Test {
 protected:
  NormAlarmTest() {
    t_.FormFour();
    for (size_t i = 0; i < NormBand::kLeast; ++i) {
      Report("a", kUsual, kUsual, kUsual);
      Report("b", kUsual, kUsual, kUsual);
    }
  }
  void Report(const std::string& agent, double own, double site, double total) {
    protocol::StepReport report;
    report.group = t_.group;
    report.generation = 1;
    report.noise.push_back({step_ += 8, 1, own, site, 1, 0, 0, total});
    t_.Say(agent, report);
  }
  uint64_t Alarms() const { return t_.Snapshot().norm_alarms_total; }

  TestCluster t_;
  uint64_t step_ = 0;
};

TEST_F(NormAlarmTest, sec_poison_norm_NamesTheRanksThatSendIt) {
  EXPECT_EQ(Alarms(), 0);
  EXPECT_THAT(t_.alarms(), IsEmpty());
  Report("b", kEnormous, kUsual, kUsual);
  EXPECT_EQ(Alarms(), 1);
  ASSERT_EQ(t_.alarms().size(), 1u);
  EXPECT_EQ(t_.alarms()[0].agent, "b");
  EXPECT_THAT(t_.alarms()[0].what,
              AllOf(HasSubstr("ranks 2, 3 (agent 'b', site 'y') at step"),
                    HasSubstr("norm 2e+03, 1e+03 times the median")));
}

// An agent that says nothing of its own is seen by those who form the sums.
TEST_F(NormAlarmTest, sec_poison_norm_ALiarShowsInTheSums) {
  Report("b", kUsual, kUsual, kUsual);
  Report("a", kUsual, kUsual, kEnormous);
  ASSERT_EQ(t_.alarms().size(), 1u);
  EXPECT_THAT(t_.alarms()[0].what,
              HasSubstr("the sum of all sites, as agent 'a' forms it"));
  Report("b", kUsual, kEnormous, kUsual);
  ASSERT_EQ(t_.alarms().size(), 2u);
  EXPECT_THAT(t_.alarms()[1].what,
              HasSubstr("the sum of site 'y', as agent 'b' forms it"));
}

TEST_F(NormAlarmTest, AllAreCountedButAnAgentIsToldOfOnceInTenMinutes) {
  Report("b", kEnormous, kUsual, kUsual);
  Report("b", kEnormous, kUsual, kUsual);
  Report("a", kEnormous, kUsual, kUsual);
  EXPECT_EQ(Alarms(), 3);
  EXPECT_EQ(t_.alarms().size(), 2u);
  t_.Pass(601, {"a", "b"});
  Report("b", kEnormous, kUsual, kUsual);
  EXPECT_EQ(t_.alarms().size(), 3u);
}

TEST(NormWatch, FactorZeroIsOff) {
  Options options;
  options.norm_alarm = 0;
  TestCluster t(options);
  t.FormFour();
  protocol::StepReport report;
  report.group = t.group;
  report.generation = 1;
  for (uint64_t step = 8; step < 200; step += 8) {
    const double squares = step == 160 ? kEnormous : kUsual;
    report.noise = {{step, 1, squares, squares, 1, 0, 0, squares}};
    t.Say("a", report);
  }
  EXPECT_THAT(t.alarms(), IsEmpty());
}

// Ranks that come and go do not make everybody unknown again; a new job does.
TEST(NormWatch, KnowsWhoStays) {
  const auto named = [](const std::string& name) {
    protocol::Member member;
    member.agent = name;
    member.ranks = {0};
    return member;
  };
  const auto first = [&](bool anew, const std::string& member) {
    NormWatch watch;
    for (size_t i = 0; i < NormBand::kLeast; ++i) {
      watch.Add(named("b"), {i, 1, kUsual, 1, 1, 0, 0, 1}, kFactor, {});
    }
    watch.Begin({named(member)}, anew);
    return watch.Add(named("b"), {99, 1, kEnormous, 1, 1, 0, 0, 1}, kFactor,
                     {});
  };
  EXPECT_TRUE(first(false, "b"));
  EXPECT_FALSE(first(false, "c"));
  EXPECT_FALSE(first(true, "b"));
}

}  // namespace
}  // namespace pactrain::coordinator
