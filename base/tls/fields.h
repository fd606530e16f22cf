// Texts as one, without a way for bytes to pass from one to the next.
#ifndef PACTRAIN_BASE_TLS_FIELDS_H_
#define PACTRAIN_BASE_TLS_FIELDS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace pactrain::base {

// Appends `text` with its length before it.
inline void AppendField(absl::string_view text, std::string& bytes) {
  const uint64_t size = text.size();
  for (int shift = 56; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(size >> shift));
  }
  bytes.append(text.data(), text.size());
}

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_FIELDS_H_
