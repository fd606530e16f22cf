// Nested plain values: what a rank's state consists of, as Python's
// state_dict()s do.
//
//   StateValue place = StateValue::Dict({{"epoch", 3}, {"rate", 0.1}});
//   int64_t epoch = place.At("epoch").AsInt();
#ifndef PACTRAIN_TRAINER_CPP_STATE_VALUE_H_
#define PACTRAIN_TRAINER_CPP_STATE_VALUE_H_

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "trainer/cpp/errors.h"

namespace pactrain {

// Elements in the order of indices, little-endian. `dtype` as torch names it:
// "float32", "int64", ...
struct StateTensor {
  std::string dtype = {};
  std::vector<int64_t> shape = {};
  std::vector<uint8_t> bytes = {};

  friend bool operator==(const StateTensor&, const StateTensor&) = default;
};

struct StateItem;

// None (the default), a bool, a whole number of 64 bits, a float, a string, a
// tensor, a list or tuple, or a dict. As...() and At() throw InvalidArgument if
// it is something else or has no such key.
class StateValue {
 public:
  // `tag`: "list" or "tuple".
  struct Sequence {
    std::string tag = "list";
    std::vector<StateValue> items;
    friend bool operator==(const Sequence&, const Sequence&) = default;
  };
  // In order. `tag`: "dict", or what else Python has: "ordered", "counter".
  struct Mapping {
    std::string tag = "dict";
    std::vector<StateItem> items;
    friend bool operator==(const Mapping&, const Mapping&) = default;
  };
  using Variant = std::variant<std::monostate, bool, int64_t, double,
                               std::string, StateTensor, Sequence, Mapping>;

  StateValue() = default;
  StateValue(bool value);
  template <std::integral T>
  StateValue(T value);
  StateValue(double value);
  StateValue(const char* value);
  StateValue(std::string value);
  StateValue(StateTensor value);
  StateValue(Sequence value);
  StateValue(Mapping value);

  static StateValue Dict();
  static StateValue Dict(std::vector<StateItem> items);
  static StateValue List();
  static StateValue List(std::vector<StateValue> items);
  static StateValue Tuple(std::vector<StateValue> items);

  const Variant& variant() const { return value_; }
  bool is_none() const {
    return std::holds_alternative<std::monostate>(value_);
  }
  bool AsBool() const { return Get<bool>("a bool"); }
  int64_t AsInt() const { return Get<int64_t>("a whole number"); }
  // Also a whole one.
  double AsNumber() const {
    const auto* whole = std::get_if<int64_t>(&value_);
    return whole != nullptr ? static_cast<double>(*whole)
                            : Get<double>("a number");
  }
  const std::string& AsString() const { return Get<std::string>("a string"); }
  const StateTensor& AsTensor() const { return Get<StateTensor>("a tensor"); }
  const std::vector<StateValue>& AsList() const {
    return Get<Sequence>("a list").items;
  }
  const std::vector<StateItem>& AsDict() const {
    return Get<Mapping>("a dict").items;
  }

  // Of a dict; null: it has no such key.
  const StateValue* Find(const StateValue& key) const;
  const StateValue& At(const std::string& key) const;
  // Adds to a dict.
  void Add(StateValue key, StateValue value);

  friend bool operator==(const StateValue&, const StateValue&) = default;

 private:
  template <typename T>
  const T& Get(const char* wanted) const {
    if (const T* value = std::get_if<T>(&value_)) return *value;
    throw InvalidArgument(std::string("A state has something else where ") +
                          wanted +
                          " should be.\nShare the same things on all ranks.");
  }

  Variant value_;
};

struct StateItem {
  StateValue key;
  StateValue value;

  friend bool operator==(const StateItem&, const StateItem&) = default;
};

// Here, since they need a Mapping that is complete.
inline StateValue::StateValue(bool value) : value_(value) {}
template <std::integral T>
StateValue::StateValue(T value) : value_(static_cast<int64_t>(value)) {}
inline StateValue::StateValue(double value) : value_(value) {}
inline StateValue::StateValue(const char* value) : value_(std::string(value)) {}
inline StateValue::StateValue(std::string value) : value_(std::move(value)) {}
inline StateValue::StateValue(StateTensor value) : value_(std::move(value)) {}
inline StateValue::StateValue(Sequence value) : value_(std::move(value)) {}
inline StateValue::StateValue(Mapping value) : value_(std::move(value)) {}

inline StateValue StateValue::Dict() { return Mapping(); }

inline StateValue StateValue::Dict(std::vector<StateItem> items) {
  return Mapping{.items = std::move(items)};
}

inline StateValue StateValue::List() { return Sequence(); }

inline StateValue StateValue::List(std::vector<StateValue> items) {
  return Sequence{.items = std::move(items)};
}

inline StateValue StateValue::Tuple(std::vector<StateValue> items) {
  return Sequence{.tag = "tuple", .items = std::move(items)};
}

inline const StateValue* StateValue::Find(const StateValue& key) const {
  for (const StateItem& item : AsDict()) {
    if (item.key == key) return &item.value;
  }
  return nullptr;
}

inline const StateValue& StateValue::At(const std::string& key) const {
  const StateValue* value = Find(key);
  if (value != nullptr) return *value;
  throw InvalidArgument("A state has no '" + key +
                        "'.\nShare the same things on all ranks.");
}

inline void StateValue::Add(StateValue key, StateValue value) {
  AsDict();
  std::get<Mapping>(value_).items.push_back({std::move(key), std::move(value)});
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_STATE_VALUE_H_
