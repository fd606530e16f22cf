// Who sends which chunk of a bucket to whom, seen from one member of a
// generation (ARCHITECTURE.md, "A step, end to end", 3 and 4).
//
// Rule: all members derive the same routes from the same generation.
//
// Immutable, hence thread-safe.
#ifndef PACTRAIN_AGENT_EXCHANGE_SCHEDULE_H_
#define PACTRAIN_AGENT_EXCHANGE_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "protocol/limits.h"
#include "protocol/types.h"

namespace pactrain::agent {

// Pieces of a bucket, of `size` elements each. The last chunk and the last
// frame of a chunk may be short.
uint32_t ChunkCount(uint64_t elements, uint32_t size);
uint32_t ChunkElements(uint64_t elements, uint32_t size, uint32_t chunk);

// How a bucket's chunks are cut, on all legs alike, by the codec between sites.
class Frames {
 public:
  explicit Frames(protocol::Codec codec);
  uint32_t CountOf(uint32_t chunk_elements) const;
  uint32_t ElementsOf(uint32_t chunk_elements, uint32_t frame) const;
  uint32_t size() const { return size_; }  // Of a whole frame, in elements.

 private:
  uint32_t size_;
};

class Schedule {
 public:
  static constexpr int kNobody = -1;

  // REQUIRES: CheckGeneration(generation).ok(), `me` is one of its members.
  Schedule(const protocol::Generation& generation, int me);

  // One chunk's way, as far as this member takes part in it. All are member
  // numbers.
  struct Route {
    int owner = kNobody;  // In this member's site; folds and forwards.
    // The rest only if this member is the owner:
    std::vector<int> children;  // Owners in the sites below, in site order.
    int parent = kNobody;       // Owner in the site above; nobody: the root.
    int swap = kNobody;         // The other owner, if the plan is a swap.
  };
  // Elements of all chunks but the last of a bucket whose frames have `frame`:
  // as many whole frames as share out evenly, over the trees and over the
  // members of each site; at most kChunkElements, and so large where the plan
  // is not of even chunks.
  uint32_t ChunkSize(uint64_t elements, uint32_t frame) const;
  // The site whose owner encodes the total of a chunk; -1: a swap has none.
  int RootSiteOf(uint32_t chunk) const;
  Route RouteOf(uint32_t chunk, uint32_t chunks) const;

  int me() const { return me_; }
  bool swap() const { return plan_.swap; }
  int site() const { return site_; }
  int sites() const { return static_cast<int>(sites_.size()); }
  // Of this site, ascending, with this member.
  const std::vector<int>& site_members() const { return sites_[site_]; }
  int SiteOf(int member) const { return site_of_[member]; }

 private:
  int OwnerIn(int site, uint32_t chunk, uint32_t chunks) const;

  const int me_;
  const protocol::Plan plan_;
  std::vector<int> site_of_;             // By member.
  std::vector<std::vector<int>> sites_;  // Members by site, ascending.
  int site_ = 0;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_SCHEDULE_H_
