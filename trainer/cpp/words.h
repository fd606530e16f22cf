// Gathers and broadcasts of raw words through the agents: PT_XOR steps.
//
// Ranks that have nothing to say contribute zeros, so the XOR of all is what
// the others said. Such a step has the commit of a gradient step: all ranks get
// it, or none.
#ifndef PACTRAIN_TRAINER_CPP_WORDS_H_
#define PACTRAIN_TRAINER_CPP_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "trainer/cpp/session.h"
#include "trainer/cpp/types.h"

namespace pactrain::internal {

// The XOR of all ranks' words; all ranks call it with equally many, >= 1.
// REQUIRES: no step is open. Throws the typed error of the step, on all ranks.
inline std::vector<uint32_t> ExchangeWords(Session& session,
                                           std::vector<uint32_t> words,
                                           const Digest& layout) {
  session.Submit({.bucket = 0,
                  .parts = {{words.data(), words.size()}},
                  .out = words.data(),  // No copy: states are large.
                  .dtype = DType::kFloat32,
                  .op = Op::kXor,
                  .layout = layout,
                  .last = true});
  session.Wait();
  return words;
}

inline size_t WordsFor(uint64_t bytes) { return (bytes + 3) / 4; }

// Gives all ranks rank 0's bytes. All call it with equally many, >= 1.
inline void BroadcastBytes(Session& session, std::span<uint8_t> bytes,
                           const Digest& layout) {
  std::vector<uint32_t> words(WordsFor(bytes.size()));
  if (session.rank() == 0) {
    std::memcpy(words.data(), bytes.data(), bytes.size());
  }
  words = ExchangeWords(session, std::move(words), layout);
  std::memcpy(bytes.data(), words.data(), bytes.size());
}

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_WORDS_H_
