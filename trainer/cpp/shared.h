// What a program shares beside its model, so that ranks can take it from each
// other: the place in the data, for one.
#ifndef PACTRAIN_TRAINER_CPP_SHARED_H_
#define PACTRAIN_TRAINER_CPP_SHARED_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/state_value.h"

namespace pactrain {

// Something with a state: what Python's model.share() takes. Names and types
// are equal on all ranks.
struct Shared {
  std::string name = {};
  std::string type =
      {};  // In a job with Python trainers: the name of the class.
  std::function<StateValue()> give = {};
  // What give() returned at another rank. InvalidArgument: it does not fit.
  std::function<void(const StateValue& state)> take = {};
  bool moves_parameters = false;  // An optimizer.
  const void* object = nullptr;   // Tells objects from each other.
};

// Whole numbers by name, which have to outlive what they are given to. For
// Python it is an object of class `type` whose state_dict() is
// {"epoch": 3, ...}.
//
//   SharedNumbers("place", "Place", {{"epoch", &epoch}, {"batch", &batch}})
inline Shared SharedNumbers(std::string name, std::string type,
                            std::map<std::string, int64_t*> numbers) {
  return {.name = std::move(name),
          .type = std::move(type),
          .give =
              [numbers] {
                StateValue state = StateValue::Dict();
                for (const auto& [key, number] : numbers) {
                  state.Add(key, *number);
                }
                return state;
              },
          .take =
              [numbers](const StateValue& state) {
                for (const auto& [key, number] : numbers) {
                  *number = state.At(key).AsInt();
                }
              }};
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_SHARED_H_
