#include "agent/exchange/schedule.h"

#include <algorithm>

namespace pactrain::agent {

using protocol::kChunkElements;

namespace {

uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Frames of whoever of `sharers` has most, at most 1/64 more than of frames
// shared out one by one? A short last chunk counts as a whole one.
bool IsEven(uint64_t frames, uint64_t frames_per_chunk, uint64_t sharers) {
  if (sharers == 1) return true;
  const uint64_t most =
      CeilDiv(CeilDiv(frames, frames_per_chunk), sharers) * frames_per_chunk;
  return 64 * most <= 65 * CeilDiv(frames, sharers);
}

}  // namespace

uint32_t ChunkCount(uint64_t elements, uint32_t size) {
  return static_cast<uint32_t>(CeilDiv(elements, size));
}

uint32_t ChunkElements(uint64_t elements, uint32_t size, uint32_t chunk) {
  return static_cast<uint32_t>(
      std::min<uint64_t>(size, elements - uint64_t{chunk} * size));
}

Frames::Frames(protocol::Codec codec)
    : size_(protocol::IsLevels(codec) ? protocol::kLevelsFrameElements
                                      : protocol::kFrameElements) {}

uint32_t Frames::CountOf(uint32_t chunk_elements) const {
  return (chunk_elements + size_ - 1) / size_;
}

uint32_t Frames::ElementsOf(uint32_t chunk_elements, uint32_t frame) const {
  return std::min(size_, chunk_elements - frame * size_);
}

Schedule::Schedule(const protocol::Generation& generation, int me)
    : me_(me), plan_(generation.plan) {
  for (size_t member = 0; member < generation.members.size(); ++member) {
    site_of_.push_back(generation.SiteOf(static_cast<int>(member)));
  }
  for (size_t site = 0; site < generation.sites.size(); ++site) {
    sites_.push_back(generation.MembersOfSite(static_cast<int>(site)));
  }
  site_ = site_of_[me];
}

int Schedule::OwnerIn(int site, uint32_t chunk, uint32_t chunks) const {
  const std::vector<int>& members = sites_[site];
  return members[uint64_t{chunk} * members.size() / chunks];
}

uint32_t Schedule::ChunkSize(uint64_t elements, uint32_t frame) const {
  uint32_t size = kChunkElements;
  if (!plan_.even_chunks) return size;
  const uint64_t frames = CeilDiv(elements, frame);
  const auto is_even = [&] {
    if (!plan_.swap && !IsEven(frames, size / frame, plan_.trees.size()))
      return false;
    return std::all_of(sites_.begin(), sites_.end(), [&](const auto& members) {
      return IsEven(frames, size / frame, members.size());
    });
  };
  while (size > frame && !is_even()) size -= frame;
  return size;
}

Schedule::Route Schedule::RouteOf(uint32_t chunk, uint32_t chunks) const {
  Route route;
  route.owner = OwnerIn(site_, chunk, chunks);
  if (route.owner != me_) return route;
  if (plan_.swap) {
    route.swap = OwnerIn(1 - site_, chunk, chunks);
    return route;
  }
  const auto& parent = plan_.trees[chunk % plan_.trees.size()].parent;
  if (parent[site_] != site_)
    route.parent = OwnerIn(parent[site_], chunk, chunks);
  for (size_t site = 0; site < parent.size(); ++site) {
    if (parent[site] == site_ && static_cast<int>(site) != site_) {
      route.children.push_back(OwnerIn(static_cast<int>(site), chunk, chunks));
    }
  }
  return route;
}

int Schedule::RootSiteOf(uint32_t chunk) const {
  if (plan_.swap) return -1;
  const auto& parent = plan_.trees[chunk % plan_.trees.size()].parent;
  for (size_t site = 0; site < parent.size(); ++site) {
    if (parent[site] == site) return static_cast<int>(site);
  }
  return -1;
}

}  // namespace pactrain::agent
