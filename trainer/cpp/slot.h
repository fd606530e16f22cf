// How much shared memory a trainer needs: enough for any of its exchanges.
#ifndef PACTRAIN_TRAINER_CPP_SLOT_H_
#define PACTRAIN_TRAINER_CPP_SLOT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "trainer/cpp/agreement.h"
#include "trainer/cpp/config.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/world.h"
#include "trainer/pactrain.h"

namespace pactrain::internal {

// A multiple of 64: where buckets begin.
inline uint64_t Aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

// Of any layout of the gradients.
inline uint64_t GradientBytes(const ParameterTable& table) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    bytes += Aligned(4 * table[i].elements());
  }
  return bytes;
}

// A rank's state goes in pieces of this. Equal for equal models, however many
// ranks a launch has.
inline uint64_t StatePieceBytes(const ParameterTable& table) {
  return std::max<uint64_t>(GradientBytes(table), PT_STATE_MESSAGE_BYTES);
}

// Equal on all ranks of a launch: the first state goes in pieces of it.
inline uint64_t SlotBytes(const AttachConfig& config,
                          const ParameterTable& table, uint64_t buffer_bytes) {
  const bool elastic = config.elastic();
  const uint32_t ranks = elastic ? kMaxRanks : config.world_size;
  return std::max({elastic ? StatePieceBytes(table) : GradientBytes(table),
                   Aligned(4 * uint64_t{config.world_size} * kRecordWords),
                   Aligned(4 * MaskWords(table, ranks)),
                   Aligned(buffer_bytes)});
}

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_SLOT_H_
