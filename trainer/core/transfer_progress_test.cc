#include "trainer/core/transfer_progress.h"

#include "gtest/gtest.h"

namespace pactrain::trainer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TransferProgress Third() {
  return {.takers = {3},
          .giver = 0,
          .what = "the model",
          .bytes = 12'540'000,
          .all = 97'500'000,
          .told = seconds(100)};
}

TEST(TransferProgress, ShortWaitsNeedNoWords) {
  EXPECT_EQ(LineAt(Third(), seconds(100)), "");
  EXPECT_EQ(LineAt(Third(), milliseconds(104'999)), "");
}

TEST(TransferProgress, SaysHowMuchOfAllAndFromWhom) {
  EXPECT_EQ(LineAt(Third(), seconds(105)),
            "rank 3 takes the model of rank 0: 12.5 of 97.5 MB");
  EXPECT_EQ(LineAt(Third(), seconds(105)), LineAt(Third(), seconds(500)));
}

TEST(TransferProgress, NotAllOfManyAreNamed) {
  TransferProgress many = Third();
  many.takers = {2, 3};
  EXPECT_EQ(LineAt(many, seconds(105)).find("ranks 2, 3 take the model"), 0u);
  many.takers.clear();
  for (uint32_t rank = 1; rank <= 1023; ++rank) many.takers.push_back(rank);
  EXPECT_EQ(LineAt(many, seconds(105)),
            "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 1015 more take the model of rank "
            "0: 12.5 of 97.5 MB");
}

}  // namespace
}  // namespace pactrain::trainer
