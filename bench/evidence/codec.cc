// One bucket's exchange between sites, in one process, by the agents' own codecs
// and sums: what eight trainers at three agents get, bit for bit
// (`make report-check` compares). For bench/evidence/codec.py.
//
// As in ARCHITECTURE.md, "A step": each site adds up its ranks in order; a site
// sends E(own sum + decoded children, in site order) to its parent; the root
// encodes the total once, and all use the decoded bytes.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "agent/codec/codec.h"
#include "agent/codec/dither.h"
#include "kernels/sum.h"
#include "protocol/frame.h"
#include "protocol/limits.h"
#include "protocol/types.h"

namespace pactrain::evidence {
namespace {

using protocol::Leg;

struct Exchange {
  const float* gradients;  // [ranks][elements], site by site.
  uint32_t elements;
  const int32_t* ranks;    // Of each site.
  const int32_t* parents;  // Of each site; -1: the root.
  int32_t sites;
  protocol::Codec codec;
  uint64_t step;
  uint32_t bucket;
  uint64_t* sent;  // Bytes of each site's encode.
};

std::vector<const float*> RanksOf(const Exchange& e, int site) {
  int first = 0;
  for (int s = 0; s < site; ++s) first += e.ranks[s];
  std::vector<const float*> rows;
  for (int r = first; r < first + e.ranks[site]; ++r) {
    rows.push_back(e.gradients + size_t(r) * e.elements);
  }
  return rows;
}

uint32_t FrameOf(protocol::Codec codec) {
  return protocol::IsLevels(codec) ? protocol::kLevelsFrameElements
                                   : protocol::kFrameElements;
}

// What all decode of this site's encode.
std::vector<float> Encoded(const Exchange& e, int site,
                           const std::vector<float>& sum) {
  const bool root = e.parents[site] < 0;
  const uint64_t key =
      agent::DitherKey(0, e.step, e.bucket, static_cast<uint16_t>(site),
                       root ? Leg::kDown : Leg::kUp);
  const agent::Codec& codec = agent::CodecFor(e.codec);
  std::vector<float> decoded(e.elements);
  std::vector<uint8_t> bytes;
  const uint32_t frame = FrameOf(e.codec);
  for (uint32_t first = 0; first < e.elements; first += frame) {
    const uint32_t count = std::min(frame, e.elements - first);
    bytes.resize(codec.BytesFor(count).most);
    e.sent[site] +=
        codec
            .Encode(sum.data() + first, count, {key, first}, /*shorter=*/true,
                    bytes.data(), decoded.data() + first)
            .bytes;
  }
  return decoded;
}

std::vector<float> Fold(const Exchange& e, int site) {
  std::vector<const float*> terms = RanksOf(e, site);
  std::vector<std::vector<float>> children;
  for (int child = 0; child < e.sites; ++child) {
    if (e.parents[child] == site) children.push_back(Fold(e, child));
  }
  for (const auto& child : children) terms.push_back(child.data());
  std::vector<float> sum(e.elements);
  kernels::Sum(terms.data(), terms.size(), e.elements, sum.data());
  return Encoded(e, site, sum);
}

}  // namespace
}  // namespace pactrain::evidence

// `codec`: protocol::Codec's number. `parents` is a tree with one root; `result`
// gets the decoded total, `sent` (zeroed by the caller) the bytes of each
// site's encode: up from a site, and down to all from the root.
extern "C" void evidence_exchange(const float* gradients, uint32_t elements,
                                  const int32_t* ranks, const int32_t* parents,
                                  int32_t sites, int32_t codec, uint64_t step,
                                  uint32_t bucket, float* result,
                                  uint64_t* sent) {
  const pactrain::evidence::Exchange exchange{
      gradients, elements, ranks, parents, sites,
      static_cast<pactrain::protocol::Codec>(codec), step, bucket, sent};
  int root = 0;
  while (parents[root] >= 0) ++root;
  const std::vector<float> total = pactrain::evidence::Fold(exchange, root);
  std::copy(total.begin(), total.end(), result);
}
