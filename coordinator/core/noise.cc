#include "coordinator/core/noise.h"

#include <algorithm>

namespace pactrain::coordinator {
namespace {

constexpr size_t kMaxOpen = 64;    // Steps that not all have reported.
constexpr size_t kMaxNewest = 12;  // Measured steps that count.

}  // namespace

Noise::Noise(const protocol::Generation& generation)
    : world_(generation.world_size) {
  std::map<std::string, double> by_site;
  for (const protocol::Member& member : generation.members) {
    by_site[member.site] += static_cast<double>(member.ranks.size());
  }
  for (const protocol::Member& member : generation.members) {
    trainers_in_site_[member.agent] = by_site[member.site];
  }
  for (const auto& [site, trainers] : by_site) spare_ += trainers - 1;
}

void Noise::Add(const std::string& agent,
                const protocol::StepReport::Noise& sample) {
  if (!trainers_in_site_.contains(agent)) return;
  Open& open = open_[sample.step];
  open.by_agent[agent] = sample;
  if (open.by_agent.size() == trainers_in_site_.size()) {
    newest_.push_back(Join(open));
    if (newest_.size() > kMaxNewest) newest_.pop_front();
    open_.erase(sample.step);
  }
  while (open_.size() > kMaxOpen) open_.erase(open_.begin());
}

Noise::Measured Noise::Join(const Open& open) const {
  Measured m;
  double local = 0, within_sites = 0, total = 0;
  for (const auto& [agent, sample] : open.by_agent) {
    m.version = std::max(m.version, sample.decision_version);
    m.encoded += sample.encoded;
    m.error += sample.error;
    m.clip += sample.clip;
    local += sample.local;
    within_sites += sample.local - sample.site / trainers_in_site_.at(agent);
    total += sample.total;
  }
  m.scale = world_ * local;
  if (spare_ > 0) {
    m.variance = world_ * within_sites / spare_;
  } else if (world_ > 1) {
    m.variance = world_ * (local - std::max(0.0, total - m.error) / world_) /
                 (world_ - 1);
  }
  return m;
}

std::optional<Noise::Estimate> Noise::Newest(
    std::optional<uint64_t> version) const {
  Estimate sum;
  for (const Measured& m : newest_) {
    if (version && m.version != *version) continue;
    ++sum.steps;
    sum.variance += m.variance;
    sum.encoded += m.encoded;
    sum.error += m.error;
    sum.clip += m.clip;
    sum.scale += m.scale;
  }
  if (sum.steps == 0 || !(sum.variance > kResolution * sum.scale)) {
    return std::nullopt;
  }
  return sum;
}

}  // namespace pactrain::coordinator
