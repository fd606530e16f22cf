#include "coordinator/admin/links.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {
namespace {

using ::testing::ElementsAre;

constexpr double kMbit = 1e6 / 8;  // Bytes per second.

class LinksTest : public ::testing::Test {
 protected:
  // Site a has the agents a1 and a2, b has b1 and so on.
  LinksTest() {
    for (const char* agent : {"a1", "a2", "b1", "c1", "d1"}) {
      v1::AgentState& state = *answer_.add_agents();
      state.set_agent(agent);
      state.set_site(std::string(1, agent[0]));
      state.set_connected(true);
    }
  }
  void Add(const std::string& agent, const std::string& to, double mbit,
           double rtt_ms = 0) {
    v1::LinkState& link = *answer_.add_links();
    link.set_agent(agent);
    link.set_site(agent.substr(0, 1));
    link.set_peer_site(to);
    link.set_goodput_bytes_per_second(mbit * kMbit);
    link.set_rtt_seconds(rtt_ms * 1e-3);
  }
  void Disconnect(int agent) {
    answer_.mutable_agents(agent)->set_connected(false);
  }
  void State(const std::string& site, double mbit) {
    (*answer_.mutable_site_rates())[site] = mbit * kMbit;
  }
  // "[!] what", the mark for a warning, which has advice; an ok has none.
  std::vector<std::string> Found() const {
    std::vector<std::string> found;
    for (const Finding& finding : CheckLinks(answer_)) {
      EXPECT_EQ(finding.check, "links");
      const bool warned = finding.level == Level::kWarning;
      EXPECT_EQ(finding.level == Level::kOk, !warned);
      EXPECT_EQ(finding.to_do.empty(), !warned);
      found.push_back(absl::StrCat(warned ? "! " : "", finding.what));
    }
    return found;
  }

  v1::ListAgentsResponse answer_;
};

TEST_F(LinksTest, WithoutAJobNothingIsMeasured) {
  EXPECT_THAT(Found(), ElementsAre("not measured: no job runs"));
}

TEST_F(LinksTest, EachDirectionIsShownWithItsRateAndRoundTrip) {
  Add("b1", "a", 9.53);
  Add("a1", "b", 12.4, 21);
  EXPECT_THAT(Found(), ElementsAre("a to b: 12 Mbit/s, 21.0 ms there and back",
                                   "b to a: 9.5 Mbit/s"));
}

TEST_F(LinksTest, AnAgentMeasuresForAllItsJobsAndSharesALinkWithItsSite) {
  Add("a1", "b", 40, 30);
  Add("a1", "b", 50, 25);  // The same in another job.
  Add("a2", "b", 45, 28);
  EXPECT_THAT(Found(),
              ElementsAre("a to b: 95 Mbit/s, 25.0 ms there and back"));
}

TEST_F(LinksTest, WhatHasLeftIsNotShown) {
  Add("a1", "b", 100);
  Add("a2", "b", 50);
  Add("b1", "a", 140);
  Add("c1", "a", 100);
  Add("b1", "c", 1);
  Disconnect(1);  // a2
  Disconnect(3);  // c1, all of its site.
  EXPECT_THAT(Found(), ElementsAre("a to b: 100 Mbit/s", "b to a: 140 Mbit/s"));
}

TEST_F(LinksTest, OneWithoutARateIsWarnedOfIfTheOtherWayHasOne) {
  Add("a1", "b", 0);
  Add("b1", "a", 0);
  EXPECT_THAT(Found(), ElementsAre("a to b: rate not measured",
                                   "b to a: rate not measured"));
  Add("b1", "a", 100);
  EXPECT_THAT(
      Found(),
      ElementsAre("! a to b: rate not measured; the other way has a rate",
                  "b to a: 100 Mbit/s"));
}

TEST_F(LinksTest, AQuarterOfWhatMostOthersHaveIsEnough) {
  Add("a1", "b", 100);
  Add("b1", "a", 25);
  EXPECT_THAT(Found(), ElementsAre("a to b: 100 Mbit/s", "b to a: 25 Mbit/s"));
  answer_.clear_links();
  Add("a1", "b", 100);
  Add("b1", "a", 24.9);
  EXPECT_THAT(
      Found(),
      ElementsAre("a to b: 100 Mbit/s",
                  "! b to a: 25 Mbit/s; most others have 100 Mbit/s or more"));
  // A few fast ones make the others no slower.
  answer_.clear_links();
  Add("a1", "b", 1000);
  Add("b1", "a", 100);
  Add("b1", "c", 100);
  EXPECT_THAT(Found(), ElementsAre("a to b: 1000 Mbit/s", "b to a: 100 Mbit/s",
                                   "b to c: 100 Mbit/s"));
}

TEST_F(LinksTest, HalfOfWhatIsStatedIsEnough) {
  State("a", 1000);
  State("b", 200);
  Add("a1", "b", 100);
  EXPECT_THAT(Found(), ElementsAre("a to b: 100 Mbit/s"));
  answer_.clear_links();
  Add("a1", "b", 99);
  EXPECT_THAT(Found(),
              ElementsAre("! a to b: 99 Mbit/s; --site-rates says 200 Mbit/s"));
}

TEST_F(LinksTest, WhoIsNotStatedIsAsFastAsTheFastest) {
  State("a", 1000);
  Add("b1", "c", 499);
  EXPECT_THAT(
      Found(),
      ElementsAre("! b to c: 499 Mbit/s; --site-rates says 1000 Mbit/s"));
}

// On a common core the access link of either end may be what is full.
TEST_F(LinksTest, AShareOfAStatedLinkIsNotSlow) {
  State("a", 300);
  State("b", 100);
  State("c", 1000);
  State("d", 1000);
  for (const char* to : {"b", "c", "d"}) Add("a1", to, 60);
  EXPECT_THAT(Found(), ElementsAre("a to b: 60 Mbit/s", "a to c: 60 Mbit/s",
                                   "a to d: 60 Mbit/s"));
  answer_.clear_links();
  for (const char* from : {"a1", "c1", "d1"}) Add(from, "b", 20);
  EXPECT_THAT(Found(), ElementsAre("a to b: 20 Mbit/s", "c to b: 20 Mbit/s",
                                   "d to b: 20 Mbit/s"));
}

}  // namespace
}  // namespace pactrain::coordinator
