#include "base/releases.h"

#include <string>
#include <utility>
#include <vector>

#include "base/version.h"
#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

using Pairs = std::vector<std::pair<const char*, const char*>>;

TEST(CompareReleases, NeighboursAreAtMostOneMinorNumberApart) {
  for (const auto& [one, other] :
       Pairs{{"0.2.0", "0.1.0"}, {"0.1.0", "0.1.1"}, {"3.9.7", "3.10.0"}}) {
    EXPECT_EQ(CompareReleases(one, other), Releases::kNeighbours) << one;
    EXPECT_EQ(CompareReleases(other, one), Releases::kNeighbours) << other;
  }
  for (const auto& [one, other] :
       Pairs{{"0.3.0", "0.1.9"}, {"1.0.0", "0.1.0"}, {"1.1.0", "0.1.0"}}) {
    EXPECT_EQ(CompareReleases(one, other), Releases::kFarApart) << one;
    EXPECT_EQ(CompareReleases(other, one), Releases::kFarApart) << other;
  }
}

TEST(CompareReleases, OfTwoFarApartTheNewerIsToBeInstalled) {
  EXPECT_EQ(FarApartText("0.9.0", "0.11.0"), FarApartText("0.11.0", "0.9.0"));
  EXPECT_NE(FarApartText("0.9.0", "0.11.0").find("bring both to 0.11.0,"),
            std::string::npos);
}

TEST(CompareReleases, WhatIsNoReleaseIsNotCompared) {
  EXPECT_EQ(CompareReleases(kVersion, kVersion), Releases::kSame);
  for (const char* other : {"", "t", "0", ".1", "0.x.1", "-1.2.3"}) {
    EXPECT_EQ(CompareReleases(other, kVersion), Releases::kUnknown) << other;
  }
  EXPECT_EQ(CompareReleases("", ""), Releases::kUnknown);
  EXPECT_EQ(CompareReleases("my-build", "my-build"), Releases::kSame);
}

}  // namespace
}  // namespace pactrain::base
