// The variables of a process, and what they may hold.
#ifndef PACTRAIN_TRAINER_CPP_ENVIRONMENT_H_
#define PACTRAIN_TRAINER_CPP_ENVIRONMENT_H_

#include <cstdlib>
#include <functional>
#include <string>

#include "trainer/cpp/errors.h"

namespace pactrain {

// The value of a variable; null where it is not set.
using Environment = std::function<const char*(const char* name)>;

inline const char* ProcessEnvironment(const char* name) {
  return std::getenv(name);
}

namespace internal {

inline std::string Variable(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? "" : value;
}

inline bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_';
}

inline bool IsLetterOrDigit(char c) {
  return IsNameChar(c) && c != '-' && c != '.' && c != '_';
}

inline void CheckName(const std::string& field, const std::string& name) {
  bool good = !name.empty() && name.size() <= 63 &&
              IsLetterOrDigit(name.front()) && IsLetterOrDigit(name.back());
  for (const char c : name) good = good && IsNameChar(c);
  if (!good) {
    throw InvalidArgument(
        field + " is '" + name +
        "'; allowed are 1 to 63 of a-z, 0-9, '-', '.' and '_', a letter or "
        "digit first and last.\nSet " +
        field + " to such a name.");
  }
}

}  // namespace internal
}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_ENVIRONMENT_H_
