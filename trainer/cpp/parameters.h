// The parameters of a model in a fixed order, and the buckets they lie in.
//
// Texts and digests are those of the Python client, so that an error about a
// difference names the same things on both sides.
#ifndef PACTRAIN_TRAINER_CPP_PARAMETERS_H_
#define PACTRAIN_TRAINER_CPP_PARAMETERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/types.h"

namespace pactrain {

// One parameter; its piece of a bucket is in the order of its indices.
struct Parameter {
  std::string name = {};
  std::vector<int64_t> shape = {};
  DType dtype = DType::kFloat32;

  uint64_t elements() const {
    uint64_t count = 1;
    for (const int64_t size : shape) count *= static_cast<uint64_t>(size);
    return count;
  }
};

namespace internal {

inline uint64_t ElementBytes(DType dtype) {
  return dtype == DType::kBfloat16 ? 2 : 4;
}

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

inline std::string ContiguousStrides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i > 1; --i) {
    strides[i - 2] = strides[i - 1] * (shape[i - 1] > 0 ? shape[i - 1] : 1);
  }
  return TupleText(strides);
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
         ContiguousStrides(parameter.shape);
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
    return model_name_ + ": " + std::to_string(size()) + " parameters, " +
           internal::WithCommas(elements_) + " elements";
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
  std::string model_name_;
  std::vector<Parameter> parameters_;
  uint64_t elements_ = 0;
};

// Consecutive parameters of one dtype: [first, end) of the table.
struct BucketLayout {
  size_t first = 0;
  size_t end = 0;
  DType dtype = DType::kFloat32;
  uint64_t elements = 0;
  Digest digest = {};
};

// The buckets of a step, in order; digest() stands for all of them.
class Layout {
 public:
  // Buckets hold at most `cap_bytes`, or one parameter.
  Layout(const ParameterTable& table, uint64_t cap_bytes) {
    for (size_t i = 0; i < table.size(); ++i) {
      if (!Fits(table[i], cap_bytes)) {
        buckets_.push_back({.first = i, .end = i, .dtype = table[i].dtype});
      }
      buckets_.back().end = i + 1;
      buckets_.back().elements += table[i].elements();
    }
    std::string digests;
    for (BucketLayout& bucket : buckets_) {
      bucket.digest = DigestOfBucket(table, bucket);
      digests += bucket.digest.ToBytes();
    }
    digest_ = DigestOf(digests);
  }

  const std::vector<BucketLayout>& buckets() const { return buckets_; }
  const Digest& digest() const { return digest_; }

 private:
  bool Fits(const Parameter& parameter, uint64_t cap_bytes) const {
    if (buckets_.empty() || buckets_.back().dtype != parameter.dtype) {
      return false;
    }
    return (buckets_.back().elements + parameter.elements()) *
               internal::ElementBytes(parameter.dtype) <=
           cap_bytes;
  }

  static Digest DigestOfBucket(const ParameterTable& table,
                               const BucketLayout& bucket) {
    std::string text = internal::DTypeName(bucket.dtype) + " " +
                       std::to_string(bucket.elements);
    for (size_t i = bucket.first; i < bucket.end; ++i) {
      text += "\n" + internal::ShapeText(table[i]);
    }
    return DigestOf(text);
  }

  std::vector<BucketLayout> buckets_;
  Digest digest_;
};

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_PARAMETERS_H_
