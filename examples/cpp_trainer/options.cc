#include "examples/cpp_trainer/options.h"

#include <cstdint>
#include <iostream>

#include "CLI/CLI.hpp"

namespace pactrain::example {
namespace {

// A number of which `fits` is true; CLI::Range takes nan for one.
template <typename T>
CLI::Validator Number(const std::string& allowed, bool (*fits)(T)) {
  const auto check = [=](const std::string& text) {
    T value = 0;
    const bool read = CLI::detail::lexical_cast(text, value);
    return read && fits(value) ? "" : "'" + text + "' is not " + allowed;
  };
  return CLI::Validator(check, allowed);
}

bool IsCount(int64_t value) { return value >= 1 && value <= 1'000'000; }
bool IsShare(double value) { return value >= 0 && value < 1; }
bool IsRate(double value) { return value > 0 && value <= 1e3; }

}  // namespace

std::optional<Options> ParseOptions(int argc, const char* const* argv,
                                    int* exit_code) {
  Options options;
  CLI::App app{
      "cpp_trainer: trains a small network on images, together with the other "
      "ranks."};
  const CLI::Validator count =
      Number("a whole number from 1 to 1000000", IsCount);
  app.add_option("--data", options.data,
                 "File that examples/cpp_trainer/export_images.py wrote")
      ->required();
  app.add_option("--epochs", options.epochs)
      ->capture_default_str()
      ->check(count);
  app.add_option("--batch", options.batch, "Images per rank and step")
      ->capture_default_str()
      ->check(count);
  app.add_option("--amount", options.amount, "Share to prune")
      ->capture_default_str()
      ->check(Number("a number of at least 0 and below 1", IsShare));
  app.add_option("--rate", options.rate, "Learning rate")
      ->capture_default_str()
      ->check(Number("a number above 0 and up to 1000", IsRate));
  app.add_flag(
      "--track", options.track,
      "Prune by hand and let the masks be tracked; in mid-run what was "
      "pruned comes back, and half as much goes");
  app.add_option("--activate-at", options.activate_at,
                 "Step with which masks come in force");
  app.add_option("--pin", options.pin,
                 "What travels from --pin-from on: \"TERNARY 7\"");
  app.add_option("--pin-from", options.pin_from, "A step, counted from 1");
  try {
    app.parse(argc, const_cast<char**>(argv));
  } catch (const CLI::ParseError& error) {
    const bool mistake = error.get_exit_code() != 0;
    if (mistake) {
      std::cerr << "cpp_trainer: " << error.what() << "; see --help\n";
    } else {
      app.exit(error);
    }
    *exit_code = mistake ? 2 : 0;
    return std::nullopt;
  }
  return options;
}

}  // namespace pactrain::example
