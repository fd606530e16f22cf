// All that a rank has to have in common with the others, as the transfer of it
// sees it.
#ifndef PACTRAIN_TRAINER_CPP_LOCAL_STATE_H_
#define PACTRAIN_TRAINER_CPP_LOCAL_STATE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "trainer/cpp/agreement.h"
#include "trainer/cpp/state_value.h"
#include "trainer/cpp/types.h"

namespace pactrain::internal {

// Of one model; used between steps.
class LocalState {
 public:
  enum class Part {
    kNewcomer,  // All, also buffers that every rank has of its own.
    kWhole,     // All that a rank takes that was there before.
    // Without what the program itself goes on with: its place, say.
    kWithoutProgram,
  };

  virtual ~LocalState() = default;

  virtual Settings settings() const = 0;
  // Over the values of the trained parameters.
  virtual Digest ParameterDigest() const = 0;
  // Of what is shared beside the model, ascending.
  virtual std::vector<std::string> SharedNames() const = 0;
  // Optimizers that have moved the parameters and are not shared.
  virtual size_t UnnamedOptimizers() const = 0;

  // InvalidArgument: something shared cannot be sent.
  virtual StateValue Give() const = 0;
  // Takes what Give() returned at another rank.
  // RefusedError: the two models differ, or what is shared; nothing was
  // changed. InvalidArgument: an object cannot take its state.
  virtual void Take(const StateValue& state, Part part) = 0;
  // The session is in another generation, with the state of all.
  virtual void Entered() = 0;
};

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_LOCAL_STATE_H_
