// What a program shares beside its model, so that ranks can take it from each
// other: the place in the data, for one.
#ifndef PACTRAIN_TRAINER_CPP_SHARED_H_
#define PACTRAIN_TRAINER_CPP_SHARED_H_

#include <cstdint>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "trainer/cpp/errors.h"

namespace pactrain {

// Something with a state, in bytes that only C++ ranks read. Names and types
// are equal on all of them.
struct Shared {
  std::string name = {};
  std::string type = {};
  std::function<std::string()> give = {};
  // What give() returned at another rank. Throws, and has changed nothing, if
  // it does not fit.
  std::function<void(const std::string& state)> take = {};
  bool moves_parameters = false;  // An optimizer.
  const void* object = nullptr;   // Tells objects from each other.
};

// Whole numbers by name, which have to outlive what they are given to.
//
//   SharedNumbers("place", "Place", {{"epoch", &epoch}, {"batch", &batch}})
inline Shared SharedNumbers(std::string name, std::string type,
                            std::map<std::string, int64_t*> numbers) {
  return {.name = std::move(name),
          .type = std::move(type),
          .give =
              [numbers] {
                std::string state;
                for (const auto& [key, number] : numbers) {
                  state += key + " " + std::to_string(*number) + "\n";
                }
                return state;
              },
          .take =
              [numbers](const std::string& state) {
                std::map<std::string, int64_t> taken;
                std::istringstream text(state);
                std::string key;
                for (int64_t number; text >> key >> number;) {
                  taken[key] = number;
                }
                for (const auto& [key, number] : numbers) {
                  if (taken.contains(key)) continue;
                  throw InvalidArgument("A state has no number '" + key +
                                        "'.\nShare the same on all ranks.");
                }
                for (const auto& [key, number] : numbers) *number = taken[key];
              }};
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_SHARED_H_
