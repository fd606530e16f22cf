// Rules of the protocol that tests break on purpose, to show that somebody
// would notice (tests/mutants/table.txt).
//
// PT_WEAKENED(Rule) is the constant false in everything that is shipped. Only
// `bazel --config=weakened` compiles the switch in; there it is true for the
// rule that the variable WEAKENED_RULE names.
#ifndef PACTRAIN_BASE_WEAKENED_H_
#define PACTRAIN_BASE_WEAKENED_H_

#ifdef PT_WITH_WEAKENED_RULES

#include <cstdlib>
#include <cstring>

#define PT_WEAKENED(rule)                                      \
  ([] {                                                        \
    static const bool weakened = [] {                          \
      const char* const name = std::getenv("WEAKENED_RULE");   \
      return name != nullptr && std::strcmp(name, #rule) == 0; \
    }();                                                       \
    return weakened;                                           \
  }())

#else

#define PT_WEAKENED(rule) false

#endif

#endif  // PACTRAIN_BASE_WEAKENED_H_
