#include "base/rate.h"

#include "base/status_matchers.h"

namespace pactrain::base {
namespace {

using ::testing::HasSubstr;

TEST(Rate, HasAUnitInPowersOfTen) {
  EXPECT_EQ(*ParseRate("100mbit"), 12.5e6);
  EXPECT_EQ(*ParseRate("1.5gbit"), 187.5e6);
  EXPECT_EQ(*ParseRate("8kbit"), 1e3);
  EXPECT_EQ(*ParseRate("1000gbit"), 125e9);
}

TEST(Rate, SaysWhyATextIsNone) {
  const auto refused = [](const char* text, const char* why) {
    EXPECT_THAT(ParseRate(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
        << text;
  };
  refused("", "no unit");
  refused("100", "no unit");
  refused("mbit", "no number");
  refused("xmbit", "no number");
  refused("7.9kbit", "8kbit to 1000gbit");
  refused("1001gbit", "8kbit to 1000gbit");
  refused("-1mbit", "8kbit to 1000gbit");
  refused("nanmbit", "8kbit to 1000gbit");
}

TEST(Rate, ReadsWhatItWrites) {
  for (const char* text : {"8kbit", "100mbit", "1.5gbit", "1000gbit"}) {
    EXPECT_EQ(RateText(*ParseRate(text)), text);
  }
}

}  // namespace
}  // namespace pactrain::base
