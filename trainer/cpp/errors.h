// What can go wrong, as exceptions: the names and texts of the Python client.
//
// The last line of every text says what to do. After an error of a step the
// gradients are cleared, and no rank has applied a part of the step.
#ifndef PACTRAIN_TRAINER_CPP_ERRORS_H_
#define PACTRAIN_TRAINER_CPP_ERRORS_H_

#include <stdexcept>
#include <string>

#include "trainer/pactrain.h"

namespace pactrain {

// Base of all errors of this API.
class PacTrainError : public std::runtime_error {
 public:
  explicit PacTrainError(const std::string& text, bool final = false)
      : std::runtime_error(text), final_(final) {}

  // The session is over: later steps fail, too.
  bool final() const { return final_; }
  void set_final() { final_ = true; }

 private:
  bool final_;
};

// No rank applied the step: the batch can be done again.
class StepNotAppliedError : public PacTrainError {
  using PacTrainError::PacTrainError;
};

// The outcome of a step is unknown here, or ranks differ: load a checkpoint.
class ResyncRequiredError : public PacTrainError {
  using PacTrainError::PacTrainError;
};

// The agent on this node is not there, or went away.
class AgentUnresponsiveError : public PacTrainError {
  using PacTrainError::PacTrainError;
};

// The job could not be formed in time; the text names what was waited for.
class CoordinatorUnavailableError : public PacTrainError {
  using PacTrainError::PacTrainError;
};

// This model, job or setting cannot be taken as it is.
class RefusedError : public PacTrainError {
  using PacTrainError::PacTrainError;
};

// The job has begun anew without this rank: its state is untouched, and of no
// use there any more.
class ReplacedError : public RefusedError {
  using RefusedError::RefusedError;
};

// An argument or variable has a value that is not allowed.
class InvalidArgument : public PacTrainError {
  using PacTrainError::PacTrainError;
};

// Throws the type of `code`. REQUIRES: code != PT_OK.
[[noreturn]] inline void ThrowError(int code, const std::string& text,
                                    bool final = false) {
  switch (code) {
    case PT_INVALID_ARGUMENT:
      throw InvalidArgument(text, final);
    case PT_STEP_NOT_APPLIED:
      throw StepNotAppliedError(text, final);
    case PT_RESYNC_REQUIRED:
      throw ResyncRequiredError(text, final);
    case PT_AGENT_UNRESPONSIVE:
      throw AgentUnresponsiveError(text, final);
    case PT_COORDINATOR_UNAVAILABLE:
      throw CoordinatorUnavailableError(text, final);
    case PT_REFUSED:
      throw RefusedError(text, final);
    case PT_REPLACED:
      throw ReplacedError(text, final);
    default:
      throw PacTrainError(
          text.empty() ? "The trainer library failed with code " +
                             std::to_string(code) + ".\nPlease report this."
                       : text,
          final);
  }
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_ERRORS_H_
