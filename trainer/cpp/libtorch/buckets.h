// The buckets of one model, with memory of their own for what comes back.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_BUCKETS_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_BUCKETS_H_

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "trainer/cpp/buckets.h"
#include "trainer/cpp/errors.h"
#include "trainer/cpp/libtorch/model.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/session.h"

namespace pactrain::internal {

// Names the memory of gradients, and hands the means out as views of buckets.
// `trained` are the table's parameters.
class GradientBuckets {
 public:
  GradientBuckets(const ParameterTable& table, const Layout& layout,
                  std::vector<NamedTensor> trained)
      : layout_(layout), trained_(std::move(trained)), views_(table.size()) {
    for (const BucketLayout& bucket : layout.buckets()) {
      flats_.push_back(
          at::zeros({static_cast<int64_t>(bucket.elements)},
                    trained_[bucket.parameters.front()].tensor.scalar_type()));
      int64_t offset = 0;
      for (const size_t i : bucket.parameters) {
        views_[i] = PieceAt(flats_.back(), offset, table[i]);
        offset += static_cast<int64_t>(table[i].elements());
      }
    }
  }

  size_t count() const { return flats_.size(); }
  void* data(size_t bucket) { return flats_[bucket].data_ptr(); }

  // Before the first Parts(): a step that is begun must be completed.
  // RefusedError: a gradient cannot be exchanged.
  void CheckGradients() const {
    for (const NamedTensor& item : trained_) {
      const at::Tensor& gradient = item.tensor.grad();
      if (gradient.defined() && gradient.layout() != at::kStrided) {
        throw RefusedError(item.name +
                           " has a sparse gradient, which is not supported.\n"
                           "Make the embedding with sparse(false).");
      }
    }
  }

  // Where the gradients of a bucket lie, to be left alone until the step has
  // ended; zeros where there is none.
  std::vector<pt_part> Parts(size_t bucket) {
    std::vector<pt_part> parts;
    for (const size_t i : layout_.buckets()[bucket].parameters) {
      const at::Tensor& gradient = trained_[i].tensor.grad();
      at::Tensor& view = views_[i];
      if (!gradient.defined()) {
        view.zero_();
      } else if (gradient.strides() != view.strides() ||
                 gradient.scalar_type() != view.scalar_type() ||
                 gradient.is_neg()) {
        view.copy_(gradient);
      } else {
        parts.push_back({gradient.const_data_ptr(),
                         static_cast<uint64_t>(gradient.numel())});
        continue;
      }
      parts.push_back(
          {view.const_data_ptr(), static_cast<uint64_t>(view.numel())});
    }
    return parts;
  }

  // Makes the content of all buckets everybody's gradient.
  void HandOut() {
    for (size_t i = 0; i < trained_.size(); ++i) {
      if (!views_[i].defined()) continue;  // It has no elements.
      trained_[i].tensor.mutable_grad() = views_[i];
    }
  }

  // Zeros, not nothing: programs look at gradients after a step.
  void HandOutZeros() {
    for (at::Tensor& flat : flats_) flat.zero_();
    HandOut();
  }

  void ClearGradients() {
    for (NamedTensor& item : trained_) {
      item.tensor.mutable_grad() = at::Tensor();
    }
  }

 private:
  // No view in torch's sense: zero_grad() cannot detach those.
  static at::Tensor PieceAt(const at::Tensor& flat, int64_t offset,
                            const Parameter& parameter) {
    auto* data = static_cast<uint8_t*>(flat.data_ptr()) +
                 offset * static_cast<int64_t>(flat.element_size());
    return at::from_blob(
        data, parameter.shape, parameter.BucketStrides(), [flat](void*) {},
        flat.options());
  }

  const Layout& layout_;
  std::vector<NamedTensor> trained_;
  std::vector<at::Tensor> flats_;  // By bucket.
  std::vector<at::Tensor> views_;  // By parameter: its piece of a bucket.
};

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_BUCKETS_H_
