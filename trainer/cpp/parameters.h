// The parameters of a model that need a gradient, in a fixed order with names.
//
// Texts and digests are those of the Python client, so that an error about a
// difference names the same things on both sides.
#ifndef PACTRAIN_TRAINER_CPP_PARAMETERS_H_
#define PACTRAIN_TRAINER_CPP_PARAMETERS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/types.h"

namespace pactrain {

// One parameter. Its piece of a bucket has its own order of memory if that is
// gapless (channels_last: NHWC), which `strides` tells; empty: that of indices.
struct Parameter {
  std::string name = {};
  std::vector<int64_t> shape = {};
  DType dtype = DType::kFloat32;
  std::vector<int64_t> strides = {};

  uint64_t elements() const {
    uint64_t count = 1;
    for (const int64_t size : shape) count *= static_cast<uint64_t>(size);
    return count;
  }

  // Of its piece of a bucket.
  std::vector<int64_t> BucketStrides() const {
    if (!strides.empty()) return strides;
    std::vector<int64_t> contiguous(shape.size(), 1);
    for (size_t i = shape.size(); i > 1; --i) {
      contiguous[i - 2] =
          contiguous[i - 1] * std::max<int64_t>(1, shape[i - 1]);
    }
    return contiguous;
  }
};

namespace internal {

inline std::string DTypeName(DType dtype) {
  return dtype == DType::kBfloat16 ? "torch.bfloat16" : "torch.float32";
}

// As Python prints a tuple: "()", "(3,)", "(3, 4)".
inline std::string TupleText(const std::vector<int64_t>& values) {
  std::string text = "(";
  for (size_t i = 0; i < values.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  }
  return text + (values.size() == 1 ? ",)" : ")");
}

inline std::string WithCommas(uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

inline std::string ShapeText(const Parameter& parameter) {
  return parameter.name + " " + TupleText(parameter.shape) + " " +
         TupleText(parameter.BucketStrides());
}

}  // namespace internal

// Immutable list of parameters that need a gradient, in registration order.
class ParameterTable {
 public:
  // InvalidArgument: no parameter has an element.
  ParameterTable(std::string model_name, std::vector<Parameter> parameters)
      : model_name_(std::move(model_name)), parameters_(std::move(parameters)) {
    for (const Parameter& parameter : parameters_) {
      elements_ += parameter.elements();
    }
    if (elements_ == 0) {
      throw InvalidArgument(
          "model (" + model_name_ +
          ") has no parameter that needs a gradient.\n"
          "Give a model with parameters that require gradients.");
    }
  }

  size_t size() const { return parameters_.size(); }
  const Parameter& operator[](size_t index) const { return parameters_[index]; }
  uint64_t elements() const { return elements_; }

  // For error messages of other ranks.
  std::string Summary() const {
    return model_name_ + ": " + std::to_string(size()) + " parameters of " +
           DTypesText() + ", " + internal::WithCommas(elements_) + " elements";
  }

  // Over names, shapes, orders in memory and dtypes: equal on all ranks.
  Digest ModelDigest() const {
    std::string text;
    for (const Parameter& parameter : parameters_) {
      if (!text.empty()) text += "\n";
      text += internal::ShapeText(parameter) + " " +
              internal::DTypeName(parameter.dtype);
    }
    return DigestOf(text);
  }

 private:
  std::string DTypesText() const {
    std::map<std::string, size_t> counts;
    for (const Parameter& p : parameters_) {
      ++counts[internal::DTypeName(p.dtype).substr(sizeof("torch.") - 1)];
    }
    std::string text;
    for (const auto& [dtype, count] : counts) {
      text += (text.empty() ? "" : " and ") + dtype;
      if (counts.size() > 1) text += " (" + std::to_string(count) + ")";
    }
    return text;
  }

  std::string model_name_;
  std::vector<Parameter> parameters_;
  uint64_t elements_ = 0;
};

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_PARAMETERS_H_
