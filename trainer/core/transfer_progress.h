// What ranks say while a state is transferred and all wait for it.
//
// Pure: time comes as an argument.
#ifndef PACTRAIN_TRAINER_CORE_TRANSFER_PROGRESS_H_
#define PACTRAIN_TRAINER_CORE_TRANSFER_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace pactrain::trainer {

struct TransferProgress {
  // A shorter wait needs no words, and a longer one no more often.
  static constexpr std::chrono::nanoseconds kQuiet = std::chrono::seconds(5);

  std::vector<uint32_t> takers;  // Ascending, one or more.
  uint32_t giver = 0;
  std::string what;  // "the model"
  uint64_t bytes = 0, all = 0;
  std::chrono::nanoseconds told = {};  // When it was last; or began.
};

// "rank 3 takes the model of rank 0: 12.5 of 97.5 MB"; empty: nothing is to be
// said at `now`.
std::string LineAt(const TransferProgress& progress,
                   std::chrono::nanoseconds now);

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_CORE_TRANSFER_PROGRESS_H_
