#include "tests/exchange/mesh.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "agent/exchange/bucket_exchange.h"
#include "agent/exchange/combine.h"
#include "agent/exchange/schedule.h"
#include "base/check.h"

namespace pactrain::tests {
namespace {

using agent::BucketExchange;
using agent::OutgoingFrame;
using agent::Schedule;

// The sum of one agent's trainers, as its agent makes it.
std::shared_ptr<const float[]> LocalSum(const protocol::Member& member,
                                        const MeshOptions& options,
                                        const Gradient& gradient) {
  std::vector<std::vector<float>> slots;
  std::vector<const float*> terms;
  for (uint32_t rank : member.ranks) {
    std::vector<float>& slot = slots.emplace_back(options.elements);
    for (uint64_t i = 0; i < options.elements; ++i) slot[i] = gradient(rank, i);
  }
  for (const auto& slot : slots) terms.push_back(slot.data());
  auto sum = std::make_shared_for_overwrite<float[]>(options.elements);
  agent::Combine(options.op, terms, options.elements, sum.get());
  return sum;
}

struct InFlight {
  int from;
  OutgoingFrame frame;
};

}  // namespace

protocol::Generation MakeGeneration(const Shape& shape) {
  protocol::Generation g;
  g.group = {"job", 0};
  g.number = 1;
  for (size_t s = 0; s < shape.agents.size(); ++s) {
    g.sites.push_back(std::string("site-") + static_cast<char>('a' + s));
    for (int a = 0; a < shape.agents[s]; ++a) {
      protocol::Member member;
      member.agent = g.sites.back() + "-" + std::to_string(a);
      member.site = g.sites.back();
      for (int t = 0; t < shape.trainers; ++t)
        member.ranks.push_back(g.world_size++);
      g.members.push_back(std::move(member));
    }
  }
  g.plan.swap = shape.swap;
  g.plan.even_chunks = shape.even_chunks;
  for (int root : shape.roots) {
    if (shape.swap) break;
    const auto parent = static_cast<uint16_t>(root % shape.agents.size());
    g.plan.trees.push_back(
        {std::vector<uint16_t>(shape.agents.size(), parent)});
  }
  return g;
}

MeshResult RunMesh(const protocol::Generation& generation,
                   const MeshOptions& options, const Gradient& gradient) {
  const int members = static_cast<int>(generation.members.size());
  protocol::BucketContext context;
  context.generation = generation.ComputeDigest();
  context.elements = options.elements;
  context.codec = options.codec;
  context.op = options.op;
  context.dtype = "float32";

  MeshResult result;
  result.results.resize(members);
  std::vector<std::unique_ptr<Schedule>> schedules;
  std::vector<std::unique_ptr<BucketExchange>> exchanges;
  for (int m = 0; m < members; ++m) {
    schedules.push_back(std::make_unique<Schedule>(generation, m));
    result.results[m].assign(options.elements, -1.0f);
    exchanges.push_back(
        std::make_unique<BucketExchange>(BucketExchange::Options{
            .schedule = schedules[m].get(),
            .context = context,
            .step = options.step,
            .dither_step = options.step,
            .attempt = options.attempt,
            .local = LocalSum(generation.members[m], options, gradient),
            .result = absl::MakeSpan(result.results[m]),
            .measure = options.measure}));
  }

  std::mt19937_64 random(options.seed);
  std::vector<InFlight> flight;
  std::map<int, uint64_t> sent;  // By site, to other sites.
  std::vector<OutgoingFrame> out;
  const auto launch = [&](int from) {
    for (OutgoingFrame& frame : out) {
      ++result.data_frames;
      const int site = schedules[0]->SiteOf(from);
      if (site != schedules[0]->SiteOf(frame.member)) {
        sent[site] += frame.header.bytes + protocol::kHeaderBytes;
      }
      if (static_cast<int>(random() % 100) < options.duplicates_percent) {
        flight.push_back({from, frame});
      }
      flight.push_back({from, std::move(frame)});
    }
    out.clear();
  };
  // Who still lacks some of its local sum.
  std::vector<int> partial(members);
  std::iota(partial.begin(), partial.end(), 0);
  const auto extend = [&] {
    std::swap(partial[random() % partial.size()], partial.back());
    const int m = partial.back();
    const uint64_t from = exchanges[m]->local_elements();
    // Large pieces, small ones, and the rest.
    const uint64_t most = random() % 2 == 0 ? options.elements : 5000;
    const uint64_t to =
        random() % 4 == 0
            ? options.elements
            : std::min(options.elements, from + random() % (most + 1));
    PT_CHECK(exchanges[m]->Extend(to, out).ok());
    if (to == options.elements) partial.pop_back();
    launch(m);
  };
  while (!flight.empty() || !partial.empty()) {
    if (flight.empty() || (!partial.empty() && random() % 8 == 0)) {
      extend();
      continue;
    }
    std::swap(flight[random() % flight.size()], flight.back());
    const InFlight next = std::move(flight.back());
    flight.pop_back();
    const int to = next.frame.member;
    const absl::Status status = exchanges[to]->Receive(
        next.from, next.frame.header, next.frame.payload, out);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    PT_CHECK(status.ok());
    launch(to);
  }
  for (int m = 0; m < members; ++m) {
    PT_CHECK(exchanges[m]->done());
    result.noise.push_back(exchanges[m]->noise());
  }
  for (const auto& [site, bytes] : sent) {
    result.site_bytes_sent_most = std::max(result.site_bytes_sent_most, bytes);
  }
  return result;
}

}  // namespace pactrain::tests
