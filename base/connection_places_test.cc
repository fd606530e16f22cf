#include "base/connection_places.h"

#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace pactrain::base {
namespace {

using ::testing::HasSubstr;
using Place = ConnectionPlaces::Place;

std::string Address(int number) { return absl::StrCat("10.0.0.", number); }

class ConnectionPlacesTest : public ::testing::Test {
 protected:
  // The next connection from there, which must get in.
  Place Admit(const std::string& source) {
    gave_way_.reset();
    const auto admission = places_.Admit(source, &limit_);
    EXPECT_OK(admission.status());
    if (!admission.ok()) return 0;
    gave_way_ = admission->gave_way;
    return admission->place;
  }
  Place AdmitProven(const std::string& source) {
    const Place place = Admit(source);
    places_.Prove(place);
    return place;
  }
  void ExpectGaveWay(Place place, const std::string& source, Refusal limit) {
    ASSERT_TRUE(gave_way_.has_value());
    EXPECT_EQ(gave_way_->place, place);
    EXPECT_EQ(gave_way_->source, source);
    EXPECT_EQ(gave_way_->limit, limit);
  }
  void ExpectRefused(const std::string& source, Refusal limit) {
    EXPECT_THAT(places_.Admit(source, &limit_),
                StatusIs(absl::StatusCode::kResourceExhausted, ::testing::_));
    EXPECT_EQ(limit_, limit);
  }

  // At most five strangers, four of one source.
  ConnectionPlaces places_{{{.total = 8, .per_source = 4}, 5}};
  std::optional<ConnectionPlaces::GaveWay> gave_way_;
  Refusal limit_ = {};
};

TEST_F(ConnectionPlacesTest, UpToTheLimitNobodyGivesWay) {
  for (int i = 1; i <= 5; ++i) {
    Admit(Address(i));
    EXPECT_FALSE(gave_way_.has_value()) << i;
  }
  EXPECT_EQ(places_.open(), 5);
}

TEST_F(ConnectionPlacesTest, sec_TheOldestOfTheSourceWithMostGivesWay) {
  Admit("one");
  const Place oldest = Admit("three");
  Admit("three");
  Admit("three");
  Admit("other");
  Admit("newcomer");
  ExpectGaveWay(oldest, "three", Refusal::kUnproven);
  EXPECT_EQ(places_.open(), 5);
}

TEST_F(ConnectionPlacesTest, sec_OfSeveralWithMostTheOldestGivesWay) {
  Admit("one");
  const Place oldest = Admit("z");
  Admit("a");
  Admit("a");
  Admit("z");
  Admit("newcomer");
  ExpectGaveWay(oldest, "z", Refusal::kUnproven);
}

TEST_F(ConnectionPlacesTest, sec_ASourceWithOneStaysBesideAFloodOfMany) {
  const Place peer = Admit("peer");
  for (int i = 0; i < 1000; ++i) {
    Admit(Address(i % 2));
    EXPECT_NE(gave_way_.has_value() ? gave_way_->place : 0, peer);
  }
  EXPECT_TRUE(places_.Release(peer));
}

TEST_F(ConnectionPlacesTest, sec_AFullSourceGivesWayItself) {
  Admit("other");
  const Place oldest = Admit("full");
  for (int i = 0; i < 3; ++i) Admit("full");
  Admit("full");  // Both limits are reached.
  ExpectGaveWay(oldest, "full", Refusal::kSource);
  EXPECT_THAT(gave_way_->why, HasSubstr("one address may have, 4; the oldest"));
}

TEST_F(ConnectionPlacesTest, sec_TheProvenNeverGiveWay) {
  for (int i = 0; i < 3; ++i) AdmitProven("full");
  const Place stranger = Admit("full");
  const Place newcomer = Admit("full");
  ExpectGaveWay(stranger, "full", Refusal::kSource);
  places_.Prove(newcomer);
  ExpectRefused("full", Refusal::kSource);
  for (int i = 0; i < 4; ++i) AdmitProven(Address(i));
  ExpectRefused("another", Refusal::kTotal);
}

TEST_F(ConnectionPlacesTest, sec_AStrangerGivesWayWhereAllPlacesAreTaken) {
  for (int i = 0; i < 7; ++i) AdmitProven(Address(i));
  const Place stranger = Admit("stranger");
  Admit("newcomer");
  ExpectGaveWay(stranger, "stranger", Refusal::kTotal);
}

TEST_F(ConnectionPlacesTest, WhoIsProvenOrGoneMakesRoomForStrangers) {
  std::vector<Place> places;
  for (int i = 0; i < 5; ++i) places.push_back(Admit(Address(i)));
  places_.Prove(places[0]);
  places_.Prove(places[0]);
  EXPECT_TRUE(places_.Release(places[1]));
  Admit("a");
  EXPECT_FALSE(gave_way_.has_value());
  Admit("b");
  EXPECT_FALSE(gave_way_.has_value());
  Admit("c");
  ExpectGaveWay(places[2], Address(2), Refusal::kUnproven);
}

TEST_F(ConnectionPlacesTest, WhoGaveWayIsGoneAlready) {
  const Place first = Admit(Address(0));
  for (int i = 1; i <= 5; ++i) Admit(Address(i));
  ExpectGaveWay(first, Address(0), Refusal::kUnproven);
  places_.Prove(first);  // Too late.
  EXPECT_FALSE(places_.Release(first));
  EXPECT_EQ(places_.open(), 5);
}

// The same rules, written down without any thought of speed.
class DumbPlaces {
 public:
  // Who gives way; 0: nobody. Nothing: it is refused.
  std::optional<Place> Admit(Place place, const std::string& source) {
    const auto is_stranger = [](const Open& o) { return !o.proven; };
    const auto strangers =
        std::count_if(open_.begin(), open_.end(), is_stranger);
    const bool source_full = CountOf(source, false) >= 4;
    Place out = 0;
    if (source_full || strangers >= 5 || open_.size() >= 8) {
      auto best = std::tuple<int64_t, Place>(0, 0);
      for (const Open& o : open_) {
        if (o.proven || (source_full && o.source != source)) continue;
        // Most first, then the oldest.
        best = std::max(best, {CountOf(o.source, true), ~o.place});
      }
      if (std::get<0>(best) == 0) return std::nullopt;
      out = ~std::get<1>(best);
      Release(out);
    }
    open_.push_back({place, source, false});
    return out;
  }
  void Prove(Place place) {
    for (Open& o : open_) o.proven |= o.place == place;
  }
  void Release(Place place) {
    std::erase_if(open_, [&](const Open& o) { return o.place == place; });
  }
  size_t size() const { return open_.size(); }
  Place at(size_t i) const { return open_[i].place; }

 private:
  struct Open {
    Place place;
    std::string source;
    bool proven;
  };
  int64_t CountOf(const std::string& source, bool strangers) const {
    return std::count_if(open_.begin(), open_.end(), [&](const Open& o) {
      return o.source == source && !(strangers && o.proven);
    });
  }
  std::vector<Open> open_;
};

TEST_F(ConnectionPlacesTest, AgreesWithADumbModel) {
  std::mt19937 random(7);
  DumbPlaces model;
  Place next = 1;
  for (int i = 0; i < 20000; ++i) {
    const unsigned what = random() % 10;
    if (what < 6 || model.size() == 0) {
      const std::string source = Address(static_cast<int>(random() % 6));
      const auto admission = places_.Admit(source, &limit_);
      const auto expected = model.Admit(next, source);
      ASSERT_EQ(admission.ok(), expected.has_value()) << i;
      if (!admission.ok()) continue;
      ASSERT_EQ(admission->place, next++);
      ASSERT_EQ(admission->gave_way ? admission->gave_way->place : 0, *expected)
          << i;
    } else {
      const Place place = model.at(random() % model.size());
      if (what < 8) {
        places_.Prove(place);
        model.Prove(place);
      } else {
        EXPECT_TRUE(places_.Release(place));
        model.Release(place);
      }
    }
    ASSERT_EQ(static_cast<size_t>(places_.open()), model.size());
  }
}

}  // namespace
}  // namespace pactrain::base
