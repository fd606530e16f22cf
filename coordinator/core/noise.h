// The risk r of a codec: the share of the effective batch that its noise costs
// (ARCHITECTURE.md, "TERNARY"; gradient noise scale, arXiv 1812.06162).
//
//   r = e / (N^2 V),  e = sum over encodes of ||Q(x) - x||^2,
//   V = sum over sites of (sum ||g_i||^2 - ||s_j||^2 / k_j)
//       / (N sum (k_j - 1)),
// the variance of the mean gradient of N trainers, k_j in site j. With one
// trainer in every site, from the total instead, whose own noise is taken off:
//   V = (sum ||g_i||^2 - (||T||^2 - e) / N) / (N (N - 1)).
//
// Pure. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_NOISE_H_
#define PACTRAIN_COORDINATOR_CORE_NOISE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "protocol/control.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

class Noise {
 public:
  // Of one generation: its agents, and how many trainers each site has.
  Noise() = default;
  explicit Noise(const protocol::Generation& generation);

  // A measured step counts once all agents have reported it.
  void Add(const std::string& agent, const protocol::StepReport::Noise& sample);

  // How many of the newest measured steps count.
  int steps() const { return static_cast<int>(newest_.size()); }

  // Sums over the newest measured steps.
  struct Estimate {
    int steps = 0;
    double variance = 0;  // N^2 V; above 0.
    double encoded = 0;   // ||x||^2 of everything that was encoded.
    double error = 0;     // e; 0 where the codec is exact.
    double clip = 0;      // The part of e that clipping made.
    double scale = 0;     // N times the sum of ||g_i||^2.
    double risk() const { return error / variance; }
    double risk_clip() const { return clip / variance; }
  };
  // Of the steps under decision `version`, or of all. Nothing: none is known,
  // or too little varies for V to show: it is a difference of sums of floats,
  // and below kResolution of them it is their rounding.
  static constexpr double kResolution = 1e-6;
  std::optional<Estimate> Newest(std::optional<uint64_t> version = {}) const;

 private:
  // What the agents have said of a step so far.
  struct Open {
    std::map<std::string, protocol::StepReport::Noise> by_agent;
  };
  struct Measured {
    uint64_t version = 0;
    double variance = 0, encoded = 0, error = 0, clip = 0, scale = 0;
  };
  Measured Join(const Open& open) const;

  std::map<std::string, double> trainers_in_site_;  // By agent.
  double world_ = 0;
  double spare_ = 0;  // Sum of k_j - 1.
  std::map<uint64_t, Open> open_;
  std::deque<Measured> newest_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_NOISE_H_
