// How integers, digests and texts lie in a frame: little-endian, a text with
// its length before it. Part of frame.cc and control_frame.cc alone.
//
// Writer and Reader have the same Field()s, so that what is written and what is
// read is one list; `what` names the field in errors.
//
// Thread-compatible.
#ifndef PACTRAIN_PROTOCOL_FRAME_BYTES_H_
#define PACTRAIN_PROTOCOL_FRAME_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/digest.h"

namespace pactrain::protocol::internal {

using base::Digest;

// Appends little-endian integers and length-prefixed text. An enum counts as
// what it is kept in; without a range its reader checks it.
class Writer {
 public:
  template <typename T>
  void Int(T value) {
    static_assert(std::is_unsigned_v<T> || std::is_enum_v<T>);
    for (size_t i = 0; i < sizeof(T); ++i) {
      out_.push_back(
          static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
    }
  }
  template <typename T>
  void Field(absl::string_view /*what*/, T value) {
    Int(value);
  }
  void Field(absl::string_view /*what*/, bool value) {
    Int(static_cast<uint8_t>(value));
  }
  void Field(absl::string_view what, const Digest& digest) {
    Field(what, digest.hi);
    Field(what, digest.lo);
  }
  template <typename E>
  void Field(absl::string_view /*what*/, E value, E /*low*/, E /*high*/) {
    Int(static_cast<uint8_t>(value));
  }
  // Cut to what a reader accepts: a long reason must not cost the message.
  void Field(absl::string_view /*what*/, absl::string_view text, size_t limit) {
    text = text.substr(0, limit);
    Int(static_cast<uint16_t>(text.size()));
    out_.append(text.data(), text.size());
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// Reads what Writer wrote; after the first bad field everything reads as zero
// and status() says which field it was.
class Reader {
 public:
  explicit Reader(absl::Span<const uint8_t> in) : in_(in) {}

  template <typename T>
  T Int(absl::string_view what) {
    static_assert(std::is_unsigned_v<T> || std::is_enum_v<T>);
    if (!Has(sizeof(T), what)) return T{};
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value |= uint64_t{in_[i]} << (8 * i);
    in_.remove_prefix(sizeof(T));
    return static_cast<T>(value);
  }
  template <typename E>
  E Enum(absl::string_view what, E low, E high) {
    const auto value = Int<uint8_t>(what);
    if (status_.ok() && (value < static_cast<uint8_t>(low) ||
                         value > static_cast<uint8_t>(high))) {
      Fail(absl::StrFormat("control: %s is %d; want %d..%d", what, value,
                           static_cast<int>(low), static_cast<int>(high)));
    }
    return static_cast<E>(value);
  }
  template <typename T>
  void Field(absl::string_view what, T& value) {
    value = Int<T>(what);
  }
  void Field(absl::string_view what, bool& value) {
    value = Enum<uint8_t>(what, 0, 1) == 1;
  }
  void Field(absl::string_view what, Digest& digest) {
    Field(what, digest.hi);
    Field(what, digest.lo);
  }
  template <typename E>
  void Field(absl::string_view what, E& value, E low, E high) {
    value = Enum(what, low, high);
  }
  void Field(absl::string_view what, std::string& text, size_t limit) {
    const size_t size = Int<uint16_t>(what);
    if (size > limit) {
      Fail(absl::StrFormat("control: %s has %d bytes; at most %d", what, size,
                           limit));
    }
    if (!Has(size, what)) return;
    text.assign(reinterpret_cast<const char*>(in_.data()), size);
    in_.remove_prefix(size);
  }
  absl::Status Finish() {
    if (status_.ok() && !in_.empty()) {
      Fail(absl::StrFormat("control: %d bytes left over", in_.size()));
    }
    return status_;
  }

 private:
  bool Has(size_t bytes, absl::string_view what) {
    if (status_.ok() && in_.size() < bytes) {
      Fail(absl::StrFormat("control: cut short in %s", what));
    }
    return status_.ok();
  }
  void Fail(const std::string& message) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(message);
  }

  absl::Span<const uint8_t> in_;
  absl::Status status_;
};

}  // namespace pactrain::protocol::internal

#endif  // PACTRAIN_PROTOCOL_FRAME_BYTES_H_
