// 128-bit XXH3 digests: equality checks between honest parties (never against
// an attacker, who can make collisions).
#ifndef PACTRAIN_BASE_DIGEST_H_
#define PACTRAIN_BASE_DIGEST_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace pactrain::base {

// All zero means "none".
struct Digest {
  uint64_t hi = 0;
  uint64_t lo = 0;

  bool empty() const { return hi == 0 && lo == 0; }
  auto operator<=>(const Digest&) const = default;

  // 32 lower-case hex digits.
  std::string ToString() const;
  // The first 8 digits: for log lines and error messages.
  std::string Short() const;

  template <typename H>
  friend H AbslHashValue(H h, const Digest& d) {
    return H::combine(std::move(h), d.hi, d.lo);
  }
};

Digest DigestOf(const void* data, size_t bytes);
inline Digest DigestOf(absl::string_view s) {
  return DigestOf(s.data(), s.size());
}

// Digest of a sequence of fields. Every field is preceded by its length, so
// that no two different sequences give the same bytes.
class DigestBuilder {
 public:
  DigestBuilder();
  ~DigestBuilder();
  DigestBuilder(const DigestBuilder&) = delete;
  DigestBuilder& operator=(const DigestBuilder&) = delete;

  DigestBuilder& Add(absl::string_view field);
  DigestBuilder& Add(uint64_t value);
  DigestBuilder& Add(const Digest& digest);
  // Bulk bytes without a length prefix.
  DigestBuilder& AddRaw(const void* data, size_t bytes);
  Digest Build() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_DIGEST_H_
