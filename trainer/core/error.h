// The error of this library: a wire::Code and words whose last line says what
// to do. Not absl::Status: the library loads into other people's processes and
// links nothing but the standard library.
#ifndef PACTRAIN_TRAINER_CORE_ERROR_H_
#define PACTRAIN_TRAINER_CORE_ERROR_H_

#include <string>

#include "trainer/wire.h"

namespace pactrain::trainer {

struct Error {
  wire::Code code = wire::Code::kOk;
  std::string text;
  bool final = false;       // The session is over.
  bool may_rejoin = false;  // Final, but attaching again is the way to go on.

  bool ok() const { return code == wire::Code::kOk; }
};

inline Error Invalid(const std::string& text) {
  return {.code = wire::Code::kInvalidArgument, .text = text};
}

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_CORE_ERROR_H_
