#include "base/certificate_life.h"

#include "gtest/gtest.h"

namespace pactrain::base {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

CertificateLife LifeOfDays(int days) {
  return {kStart, kStart + absl::Hours(24 * days)};
}

TEST(CertificateLife, sec_cert_life_alarm_AtAFifthOfItsLife) {
  for (const int days : {1, 90, 3650}) {
    const CertificateLife life = LifeOfDays(days);
    const absl::Time fifth = life.until - absl::Hours(24 * days) / 5;
    EXPECT_FALSE(life.EndsSoon(kStart));
    EXPECT_FALSE(life.EndsSoon(fifth));
    EXPECT_TRUE(life.EndsSoon(fifth + absl::Seconds(1)));
    EXPECT_TRUE(life.EndsSoon(life.until + absl::Hours(1)));
  }
}

TEST(CertificateLife, SaysWhatIsLeftInDaysOrHours) {
  const CertificateLife life = LifeOfDays(90);
  EXPECT_EQ(life.Text(kStart), "is valid for 90 days");
  EXPECT_EQ(life.Text(life.until - absl::Hours(48)), "is valid for 2 days");
  EXPECT_EQ(life.Text(life.until - absl::Hours(47)), "is valid for 47 hours");
  EXPECT_EQ(life.Text(life.until), "has expired");
}

}  // namespace
}  // namespace pactrain::base
