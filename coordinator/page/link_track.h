// An hour of the links between sites, from successive snapshots: what each
// carries and how fast it is. Agents measure for all their jobs together; those
// of a site share its links.
//
// Pure: time comes as an argument. Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_PAGE_LINK_TRACK_H_
#define PACTRAIN_COORDINATOR_PAGE_LINK_TRACK_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "coordinator/core/snapshot.h"

namespace pactrain::coordinator {

// From a site to another.
using Direction = std::pair<std::string, std::string>;

// Pairs of sites that send to each other by the plan, each once.
std::set<Direction> EdgesOf(const protocol::Generation& generation);

class LinkTrack {
 public:
  // More directions than these are counted, not kept: two of each link of a
  // tree of 64 sites.
  static constexpr size_t kMaxLinks = 128;

  struct Point {
    double at = 0;
    float rate = 0;  // Bytes per second while busy; 0: not measured.
    float used = 0;  // Bytes per second since the point before.
  };
  struct Link {
    std::deque<Point> points;  // Not empty.
    uint64_t sent = 0;         // By all agents.
    double rtt = 0;            // Seconds, the slowest; 0: not measured.
    bool awaited = false;      // A job waits for it a good part of each step.
    bool seen = false;         // By the newest snapshot.
    double best_rate() const;
    double median_rate() const;  // Of those measured; 0: none was.
    // What is carried, of the best rate; 0: not measured.
    double use() const;
  };

  void Observe(const StateSnapshot& snapshot, double now);

  const std::map<Direction, Link>& links() const { return links_; }
  size_t hidden() const { return hidden_; }

 private:
  std::map<Direction, Link> links_;
  size_t hidden_ = 0;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_PAGE_LINK_TRACK_H_
