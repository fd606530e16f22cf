// What an exchange tells of its noise: sums of squares over the elements of a
// step, from which the coordinator forms the risk r (ARCHITECTURE.md,
// "TERNARY").
//
// Plain values. Each member counts its own part; a sum over all members is the
// whole. NaN or Inf where gradients are not finite.
#ifndef PACTRAIN_AGENT_EXCHANGE_NOISE_H_
#define PACTRAIN_AGENT_EXCHANGE_NOISE_H_

#include <cstddef>

namespace pactrain::agent {

struct ExchangeNoise {
  // ||s_j||^2: of the exact sums of this member's site, over what it owns.
  double site_squares = 0;
  // ||x||^2 of what it encodes, or would encode if the codec were not exact. In
  // n levels without the blocks that are not finite; they show in the total.
  double encoded_squares = 0;
  // ||Q(x) - x||^2 of that.
  double error_squares = 0;
  // The part of it that clipping made; biased, all else is not.
  double clip_squares = 0;
  // ||T||^2 of the total as all ranks use it; counted where it is formed (of
  // two sites that swap, in the first).
  double total_squares = 0;

  ExchangeNoise& operator+=(const ExchangeNoise& other) {
    site_squares += other.site_squares;
    encoded_squares += other.encoded_squares;
    error_squares += other.error_squares;
    clip_squares += other.clip_squares;
    total_squares += other.total_squares;
    return *this;
  }
};

// Sum of squares, in double; for telemetry: the order of adding is not part of
// any agreement.
double SumOfSquares(const float* values, size_t elements);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_NOISE_H_
