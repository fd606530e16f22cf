// Who has a place at a listener, and who gives way to a newcomer when there is
// none left.
//
// A connection is a stranger's until Prove() says that its other side is known.
// Strangers never keep anybody out: where the places of its source are all
// taken, the oldest stranger of that source gives way to the newcomer; where
// those of strangers or of all are, the oldest of the source that has most
// strangers, of several such the oldest. So beside sources that have many
// connections one that has a single one always gets in, and keeps its place;
// and who has as many sources as there are places must open all of them anew
// within one handshake to be in the way of it. A proven one never gives way.
//
// Pure. Thread-compatible.
#ifndef PACTRAIN_BASE_CONNECTION_PLACES_H_
#define PACTRAIN_BASE_CONNECTION_PLACES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/connection_caps.h"

namespace pactrain::base {

class ConnectionPlaces {
 public:
  using Place = uint64_t;  // Of one connection, ever; later ones are larger.

  struct Limits {
    ConnectionCaps::Limits open;  // Strangers and proven ones together.
    int strangers = 0;
  };
  // One that has lost its place: to be closed.
  struct GaveWay {
    Place place = 0;
    std::string source;
    Refusal limit = {};  // Which was reached,
    std::string why;     // in words.
  };
  struct Admission {
    Place place = 0;
    std::optional<GaveWay> gave_way;
  };

  explicit ConnectionPlaces(const Limits& limits)
      : caps_(limits.open), max_strangers_(limits.strangers) {}

  // A place for one more stranger from SourceOf() its address.
  // ResourceExhausted: there is none, and no stranger who could give way;
  // `*limit` says which was reached.
  absl::StatusOr<Admission> Admit(const std::string& source, Refusal* limit);
  // Its other side is known. Does nothing to one that is proven, or gone.
  void Prove(Place place);
  // It is gone. False: it had given way.
  bool Release(Place place);
  int open() const { return caps_.open(); }

 private:
  absl::Status Count(const std::string& source, Refusal* limit);
  // The oldest stranger of the source that has most of them.
  std::optional<Place> OldestOfMost() const;
  std::optional<Place> OldestOf(const std::string& source) const;

  ConnectionCaps caps_;
  const int max_strangers_;
  Place last_ = 0;
  int strangers_ = 0;
  std::map<Place, std::string> sources_;  // Of all that have a place.
  std::map<std::string, std::set<Place>> strangers_of_;  // None is empty.
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_CONNECTION_PLACES_H_
