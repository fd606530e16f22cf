// Fixed-size text fields of wire structs.
#ifndef PACTRAIN_TRAINER_CORE_TEXT_H_
#define PACTRAIN_TRAINER_CORE_TEXT_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>

namespace pactrain::trainer {

// Cuts what is too long; the field always ends with a NUL.
template <size_t kBytes>
void SetText(char (&field)[kBytes], const std::string& text) {
  const size_t bytes = std::min(text.size(), kBytes - 1);
  std::memcpy(field, text.data(), bytes);
  std::memset(field + bytes, 0, kBytes - bytes);
}

// ASCII, so that it reads the same in every log and terminal.
inline bool IsPrintable(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_CORE_TEXT_H_
