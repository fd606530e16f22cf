// The command line of cpp_trainer.
#ifndef PACTRAIN_EXAMPLES_CPP_TRAINER_OPTIONS_H_
#define PACTRAIN_EXAMPLES_CPP_TRAINER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>

namespace pactrain::example {

struct Options {
  std::string data;
  int64_t epochs = 5;
  int64_t batch = 32;   // Images per rank and step.
  double amount = 0.7;  // Share to prune.
  double rate = 0.05;
  bool track = false;  // Prune by hand, and let the masks be found.
  // As of AttachConfig.
  uint32_t activate_at = 0;
  std::string pin;
  uint32_t pin_from = 0;
};

// Nothing: the process is to end with `*exit_code`; the one message (a mistake,
// or what --help asked for) has been written.
std::optional<Options> ParseOptions(int argc, const char* const* argv,
                                    int* exit_code);

}  // namespace pactrain::example

#endif  // PACTRAIN_EXAMPLES_CPP_TRAINER_OPTIONS_H_
