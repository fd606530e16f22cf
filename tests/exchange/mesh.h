// All members of a generation in one process: runs the exchange of one bucket
// and delivers frames in an order drawn from a seed, some of them twice, while
// the members' local sums come in pieces.
#ifndef PACTRAIN_TESTS_EXCHANGE_MESH_H_
#define PACTRAIN_TESTS_EXCHANGE_MESH_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "agent/exchange/noise.h"
#include "protocol/frame.h"
#include "protocol/types.h"

namespace pactrain::tests {

// Sites of the given numbers of agents, each agent with `trainers` ranks.
// Without a plan: swap for two sites, else the given roots rotate over the
// chunks.
struct Shape {
  std::vector<int> agents;  // By site.
  int trainers = 1;         // Per agent.
  std::vector<int> roots = {0};
  bool swap = false;
  bool even_chunks = true;
};
protocol::Generation MakeGeneration(const Shape& shape);

struct MeshOptions {
  protocol::Codec codec = protocol::Codec::kFp32;
  protocol::Op op = protocol::Op::kSum;
  uint64_t elements = 0;
  uint64_t seed = 0;
  int duplicates_percent = 20;
  uint64_t step = 7;
  uint16_t attempt = 1;
  bool measure = false;
};
// The value of element `i` at `rank`.
using Gradient = std::function<float(uint32_t rank, uint64_t i)>;

struct MeshResult {
  std::vector<std::vector<float>> results;  // By member.
  uint64_t data_frames = 0;                 // Without duplicates.
  uint64_t site_bytes_sent_most = 0;        // By one site to others.
  std::vector<agent::ExchangeNoise> noise;  // By member, if measured.
};
// Dies if a frame is refused or a member does not finish.
MeshResult RunMesh(const protocol::Generation& generation,
                   const MeshOptions& options, const Gradient& gradient);

}  // namespace pactrain::tests

#endif  // PACTRAIN_TESTS_EXCHANGE_MESH_H_
