// A rank's state as bytes, and back: the form of the Python client's
// state_codec.py, which says why it is so.
//
// Form: eight bytes with the length of a JSON text, that text, and the tensors'
// elements one after the other, each from a multiple of 8 bytes on. The text
// has the structure and each tensor's type and shape. What is read is checked:
// nobody can make this process allocate more than a small multiple of what
// came.
#ifndef PACTRAIN_TRAINER_CPP_STATE_CODEC_H_
#define PACTRAIN_TRAINER_CPP_STATE_CODEC_H_

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/json.h"
#include "trainer/cpp/state_value.h"

namespace pactrain {

namespace internal {

inline constexpr size_t kStateAlign = 8;
inline constexpr int kMaxStateDepth = 64;

// Bytes of one element; 0: no type that is sent.
inline uint64_t StateElementBytes(const std::string& dtype) {
  static const std::map<std::string, uint64_t> kBytes = {
      {"bool", 1},    {"uint8", 1},   {"int8", 1},      {"int16", 2},
      {"int32", 4},   {"int64", 8},   {"float16", 2},   {"bfloat16", 2},
      {"float32", 4}, {"float64", 8}, {"complex64", 8}, {"complex128", 16}};
  const auto found = kBytes.find(dtype);
  return found == kBytes.end() ? 0 : found->second;
}

// As Python's float.hex(): all bits but a nan's.
inline std::string HexFloat(double value) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  }
  char digits[40];
  const auto [end, error] = std::to_chars(
      digits, digits + sizeof(digits), std::abs(value), std::chars_format::hex);
  return (std::signbit(value) ? "-0x" : "0x") + std::string(digits, end);
}

// Of what HexFloat() or float.hex() gave.
inline double ParseHexFloat(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const double sign = negative ? -1.0 : 1.0;
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return sign * std::numeric_limits<double>::infinity();
  double value = 0;
  bool good = text.starts_with("0x");
  if (good) {
    const char* last = text.data() + text.size();
    const auto [end, error] =
        std::from_chars(text.data() + 2, last, value, std::chars_format::hex);
    good = error == std::errc() && end == last;
  }
  if (!good) throw InvalidArgument("a float is '" + std::string(text) + "'");
  return std::copysign(value, sign);
}

class StateEncoder {
 public:
  std::vector<uint8_t> Encode(const StateValue& value) {
    std::string text = "[" + Node(value, 0) + ", [";
    for (size_t i = 0; i < tensors_.size(); ++i) {
      text += (i == 0 ? "[" : ", [") + JsonString(tensors_[i]->dtype) + ", [";
      for (size_t d = 0; d < tensors_[i]->shape.size(); ++d) {
        text += (d == 0 ? "" : ", ") + std::to_string(tensors_[i]->shape[d]);
      }
      text += "]]";
    }
    text += "]]";
    std::vector<uint8_t> bytes;
    for (uint64_t rest = text.size(), i = 0; i < 8; ++i, rest >>= 8) {
      bytes.push_back(static_cast<uint8_t>(rest));
    }
    Append(text, bytes);
    for (const StateTensor* tensor : tensors_) Append(tensor->bytes, bytes);
    return bytes;
  }

 private:
  template <typename Bytes>
  static void Append(const Bytes& from, std::vector<uint8_t>& to) {
    to.insert(to.end(), from.begin(), from.end());
    to.resize((to.size() + kStateAlign - 1) / kStateAlign * kStateAlign);
  }

  std::string Node(const StateValue& value, int depth) {
    if (depth > kMaxStateDepth) {
      throw InvalidArgument("What is shared is nested deeper than " +
                            std::to_string(kMaxStateDepth) +
                            " levels.\nShare something flatter.");
    }
    return std::visit([&](const auto& held) { return Text(held, depth); },
                      value.variant());
  }

  std::string Text(std::monostate, int) { return "null"; }
  std::string Text(bool value, int) { return value ? "true" : "false"; }
  std::string Text(int64_t value, int) { return std::to_string(value); }
  std::string Text(double value, int) {
    return "[\"float\", \"" + HexFloat(value) + "\"]";
  }
  std::string Text(const std::string& value, int) { return JsonString(value); }
  std::string Text(const StateTensor& tensor, int) {
    tensors_.push_back(&tensor);
    return "[\"tensor\", " + std::to_string(tensors_.size() - 1) + "]";
  }
  std::string Text(const StateValue::Sequence& sequence, int depth) {
    std::string text = "[" + JsonString(sequence.tag);
    for (const StateValue& item : sequence.items) {
      text += ", " + Node(item, depth + 1);
    }
    return text + "]";
  }
  std::string Text(const StateValue::Mapping& mapping, int depth) {
    std::string text = "[" + JsonString(mapping.tag);
    for (const StateItem& item : mapping.items) {
      text += ", [" + Node(item.key, depth + 1) + ", ";
      text += Node(item.value, depth + 1) + "]";
    }
    return text + "]";
  }

  std::vector<const StateTensor*> tensors_;
};

class StateDecoder {
 public:
  explicit StateDecoder(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  StateValue Decode() {
    if (bytes_.size() < 8) throw InvalidArgument("it is too short");
    uint64_t length = 0;
    for (size_t i = 8; i > 0; --i) length = length << 8 | bytes_[i - 1];
    if (length > bytes_.size() - 8) {
      throw InvalidArgument("its text has " + std::to_string(length) +
                            " bytes");
    }
    const Json all =
        JsonReader({reinterpret_cast<const char*>(bytes_.data()) + 8, length})
            .Read();
    const Json::Array& parts = Array(all, 2);
    ReadTensors(Array(parts[1], 0), 8 + length);
    return Value(parts[0]);
  }

 private:
  // With at least so many items.
  static const Json::Array& Array(const Json& json, size_t least) {
    const auto* array = std::get_if<Json::Array>(&json.value);
    if (array == nullptr || array->size() < least) {
      throw InvalidArgument("its text has another form");
    }
    return *array;
  }

  template <typename T>
  static const T& Plain(const Json& json) {
    const T* value = std::get_if<T>(&json.value);
    if (value == nullptr) throw InvalidArgument("its text has another form");
    return *value;
  }

  void ReadTensors(const Json::Array& kinds, size_t offset) {
    for (const Json& kind : kinds) {
      const Json::Array& parts = Array(kind, 2);
      StateTensor tensor = {.dtype = Plain<std::string>(parts[0])};
      uint64_t size = StateElementBytes(tensor.dtype);
      if (size == 0) throw InvalidArgument("a tensor is " + tensor.dtype);
      for (const Json& dimension : Array(parts[1], 0)) {
        const int64_t elements = Plain<int64_t>(dimension);
        tensor.shape.push_back(elements);
        if (elements < 0 || __builtin_mul_overflow(
                                size, static_cast<uint64_t>(elements), &size)) {
          throw InvalidArgument("a tensor has an impossible shape");
        }
      }
      offset = (offset + kStateAlign - 1) / kStateAlign * kStateAlign;
      if (size > 0 &&
          (offset > bytes_.size() || size > bytes_.size() - offset)) {
        throw InvalidArgument("a tensor of " + std::to_string(size) +
                              " bytes is cut off");
      }
      const auto first = bytes_.data() + offset;
      if (size > 0) tensor.bytes.assign(first, first + size);
      offset += size;
      tensors_.push_back(std::move(tensor));
    }
  }

  StateValue Value(const Json& json) {
    if (const auto* array = std::get_if<Json::Array>(&json.value)) {
      return Tagged(*array);
    }
    return std::visit(
        [](const auto& plain) -> StateValue {
          using T = std::decay_t<decltype(plain)>;
          if constexpr (std::is_same_v<T, std::nullptr_t> ||
                        std::is_same_v<T, Json::Array>) {
            return {};
          } else {
            return plain;
          }
        },
        json.value);
  }

  StateValue Tagged(const Json::Array& parts) {
    if (parts.empty()) throw InvalidArgument("its text has another form");
    const std::string& tag = Plain<std::string>(parts[0]);
    if (tag == "float" && parts.size() == 2) {
      return ParseHexFloat(Plain<std::string>(parts[1]));
    }
    if (tag == "tensor" && parts.size() == 2) {
      return TakeTensor(static_cast<uint64_t>(Plain<int64_t>(parts[1])));
    }
    if (tag == "list" || tag == "tuple") {
      StateValue::Sequence sequence = {.tag = tag, .items = {}};
      for (size_t i = 1; i < parts.size(); ++i) {
        sequence.items.push_back(Value(parts[i]));
      }
      return sequence;
    }
    if (tag != "dict" && tag != "ordered" && tag != "counter") {
      throw InvalidArgument("a part is a '" + tag + "'");
    }
    StateValue::Mapping mapping = {.tag = tag, .items = {}};
    for (size_t i = 1; i < parts.size(); ++i) {
      const Json::Array& pair = Array(parts[i], 2);
      mapping.items.push_back({Value(pair[0]), Value(pair[1])});
    }
    return mapping;
  }

  // Each is used once, or a few bytes of text could fill the memory.
  StateValue TakeTensor(uint64_t index) {
    if (index >= tensors_.size() || tensors_[index].dtype.empty()) {
      throw InvalidArgument("a tensor is missing");
    }
    return std::exchange(tensors_[index], {});
  }

  std::span<const uint8_t> bytes_;
  std::vector<StateTensor> tensors_;
};

}  // namespace internal

// InvalidArgument: `value` is nested too deeply.
inline std::vector<uint8_t> EncodeState(const StateValue& value) {
  return internal::StateEncoder().Encode(value);
}

// The value that EncodeState(), or the Python client, was given.
// InvalidArgument: these bytes were not made by it.
inline StateValue DecodeState(std::span<const uint8_t> bytes) {
  try {
    return internal::StateDecoder(bytes).Decode();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("A state of " + std::to_string(bytes.size()) +
                          " bytes cannot be read: " + error.what() +
                          ".\nUse one release of pactrain on all ranks, and "
                          "share what a C++ trainer can read: whole numbers "
                          "of at most 64 bits.");
  }
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_STATE_CODEC_H_
