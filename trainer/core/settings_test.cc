#include "trainer/core/settings.h"

#include <string>

#include "gtest/gtest.h"

namespace pactrain::trainer {
namespace {

std::string Difference(const std::string& ours, const std::string& theirs) {
  return SettingsDifference(ours, 0, theirs, 2);
}

TEST(SettingsTest, EqualOnesDoNotDiffer) {
  EXPECT_EQ(Difference("gse 1\npin 0\n", "gse 1\npin 0\n"), "");
}

TEST(SettingsTest, TheArgumentEachRanksValueAndWhatToDoAreSaid) {
  EXPECT_EQ(Difference("gse 1\n", "gse 0\n"),
            "gse differs: rank 0 has True, rank 2 has False.\n"
            "Give all ranks the same gse.");
  EXPECT_EQ(Difference("settle_steps 10\n", "settle_steps 4\n"),
            "settle differs: rank 0 has 10, rank 2 has 4.\n"
            "Give all ranks the same settle.");
  EXPECT_EQ(Difference("pin 53\n", "pin 0\n"),
            "pin differs: rank 0 has TERNARY 7 levels, rank 2 has none.\n"
            "Give all ranks the same pin.");
  EXPECT_EQ(Difference("on_shrink 1\n", "on_shrink 2\n"),
            "on_shrink differs: rank 0 has pause, rank 2 has continue.\n"
            "Give all ranks the same on_shrink.");
  EXPECT_EQ(Difference("buffer_bytes 8\n", "buffer_bytes 16\n"),
            "the size of the model's buffers differs: rank 0 has 8 bytes, "
            "rank 2 has 16 bytes.\nGive all ranks one model.");
}

TEST(SettingsTest, TrackedMasksBesideDeclaredOnesAreSaidFirst) {
  EXPECT_EQ(Difference("gse 0\nsettle_steps 10\ntrack 1\n", "gse 1\ntrack 0\n"),
            "masks differs: rank 0 has 'track', rank 2 has declared ones.\n"
            "Track masks on all ranks or on none.");
}

TEST(SettingsTest, OtherNamesAreAnotherRelease) {
  for (const char* other : {"", "gse 1\nnew 1\n", "new 1\n"}) {
    EXPECT_EQ(Difference("gse 1\n", other),
              "The settings are those of another release at rank 0.\n"
              "Use one release of pactrain on all ranks.");
  }
}

TEST(SettingsTest, AValueOfALaterReleaseIsSaidAsItIs) {
  EXPECT_EQ(Difference("pin 999\n", "pin 1\n"),
            "pin differs: rank 0 has 999, rank 2 has 1.\n"
            "Give all ranks the same pin.");
}

}  // namespace
}  // namespace pactrain::trainer
