// What should travel, given what the mask votes and the telemetry say: stable
// masks mean COMPACTED, anything that could lose a gradient or lasts too long
// means FULL; where waiting for the exchange takes a share of the step and its
// risk r is within the bound, the same elements go TERNARY, with the coarsest
// codec that fits.
//
// Pure functions.
#ifndef PACTRAIN_COORDINATOR_CORE_POLICY_H_
#define PACTRAIN_COORDINATOR_CORE_POLICY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/core/mask_votes.h"
#include "coordinator/core/noise.h"
#include "coordinator/core/options.h"
#include "coordinator/core/pin.h"
#include "protocol/types.h"

namespace pactrain::coordinator {

// What measured over predicted noise is taken for before it is measured. Where
// tails are heavier than Gaussian ones, or scales differ within a block, as
// they do under masks, more is clipped: it was 1.7 with 5 levels on a masked
// job, and is 1.2 to 1.8 with 5 and 1.2 to 2.6 with 7 levels on Laplace,
// Student's t and log-normally scaled values. What was bought too fine is made
// coarser once it is measured.
inline constexpr double kUnmeasuredNoiseFactor = 1.5;

// What the agents have measured.
struct Telemetry {
  int sites = 1;
  // Of the time of a step that trainers wait for the exchange; 0..1. Nothing:
  // not measured.
  std::optional<double> exchange_share;
  int measured_steps = 0;  // Whose noise all agents have reported.
  // Nothing: no step is measured, or too little varies.
  std::optional<Noise::Estimate> noise;    // Under any decision.
  std::optional<Noise::Estimate> current;  // Under the one aimed at.
  // Nothing: the generation is about to begin.
  std::optional<protocol::Decision> in_force;
  // Measured over predicted noise of n levels, as last seen in this generation.
  double noise_factor = kUnmeasuredNoiseFactor;
};

// ||Q(x) - x||^2 / ||x||^2 of one encode of Gaussian values; 0: exact.
double ExpectedNoise(protocol::Codec codec);

// Two decisions ask for the same, whatever their versions and reasons.
bool SameContent(const protocol::Decision& a, const protocol::Decision& b);

// FULL with the options' codec.
protocol::Decision FullDecision(const Options& options, std::string reason);

// What was pinned: by an operator, who goes first, or by the script, with the
// step from which on (the agents see to that; ARCHITECTURE.md, "Onset").
struct Pins {
  std::optional<Pin> by_operator = {};
  std::optional<Pin> by_script = {};
  uint64_t script_from = 0;
  // The masks that are voted for now come in force no earlier than that.
  bool script_with_masks = false;
};

// The decision to aim at after `step` committed steps when `current` is aimed
// at now (version 0; the caller numbers it). Nothing: stay with `current`.
// The reason also says why it is not TERNARY, or not what is pinned.
std::optional<protocol::Decision> Choose(const Options& options,
                                         const protocol::Decision& current,
                                         const MaskVotes& votes, uint64_t step,
                                         const Telemetry& telemetry,
                                         const Pins& pins);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_POLICY_H_
