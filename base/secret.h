// 32 bytes that only some may know: a key, or what is derived from one. Wiped
// when it goes, each copy by itself. Not to be printed.
#ifndef PACTRAIN_BASE_SECRET_H_
#define PACTRAIN_BASE_SECRET_H_

#include <string.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace pactrain::base {

struct Secret {
  static constexpr size_t kBytes = 32;

  Secret() = default;
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret() { explicit_bzero(bytes.data(), kBytes); }

  bool operator==(const Secret&) const = default;
  // All zero: none was given.
  bool empty() const { return *this == Secret(); }

  std::array<uint8_t, kBytes> bytes = {};
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_SECRET_H_
