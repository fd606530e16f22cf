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
  explicit PacTrainError(const std::string& text, bool final = false,
                         int code = PT_INTERNAL)
      : std::runtime_error(text), final_(final), code_(code) {}

  // The session is over: later steps fail, too.
  bool final() const { return final_; }
  void set_final() { final_ = true; }
  int code() const { return code_; }  // pt_code

 private:
  bool final_;
  int code_;
};

// One with a code of its own.
template <int kCode>
class ErrorOf : public PacTrainError {
 public:
  explicit ErrorOf(const std::string& text, bool final = false)
      : PacTrainError(text, final, kCode) {}
};

// No rank applied the step: the batch can be done again.
class StepNotAppliedError : public ErrorOf<PT_STEP_NOT_APPLIED> {
  using ErrorOf::ErrorOf;
};

// The outcome of a step is unknown here, or ranks differ: load a checkpoint.
class ResyncRequiredError : public ErrorOf<PT_RESYNC_REQUIRED> {
  using ErrorOf::ErrorOf;
};

// The agent on this node is not there, or went away.
class AgentUnresponsiveError : public ErrorOf<PT_AGENT_UNRESPONSIVE> {
  using ErrorOf::ErrorOf;
};

// The job could not be formed in time; the text names what was waited for.
class CoordinatorUnavailableError : public ErrorOf<PT_COORDINATOR_UNAVAILABLE> {
  using ErrorOf::ErrorOf;
};

// This model, job or setting cannot be taken as it is.
class RefusedError : public PacTrainError {
 public:
  explicit RefusedError(const std::string& text, bool final = false,
                        int code = PT_REFUSED)
      : PacTrainError(text, final, code) {}
};

// The job has begun anew without this rank: its state is untouched, and of no
// use there any more.
class ReplacedError : public RefusedError {
 public:
  explicit ReplacedError(const std::string& text, bool final = false)
      : RefusedError(text, final, PT_REPLACED) {}
};

// An argument or variable has a value that is not allowed.
class InvalidArgument : public ErrorOf<PT_INVALID_ARGUMENT> {
  using ErrorOf::ErrorOf;
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
