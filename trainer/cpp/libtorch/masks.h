// Masks of a libtorch model by name, and pruning.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_MASKS_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_MASKS_H_

#include <ATen/ATen.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/libtorch/model.h"
#include "trainer/cpp/masks.h"
#include "trainer/cpp/parameters.h"

namespace pactrain {

// By parameter name: a bool tensor of its shape, true where the weight is kept.
// Parameters left out are kept whole.
using TorchMasks = std::map<std::string, at::Tensor>;

// What becomes of weights outside the masks.
enum class MaskKind {
  kZero,    // They are zero.
  kFreeze,  // They keep their values.
};

namespace internal {

// Bytes of the parameter's piece of a bucket.
inline at::Tensor EmptyMask(const Parameter& parameter) {
  return at::empty_strided(parameter.shape, parameter.BucketStrides(),
                           at::kByte);
}

// InvalidArgument: an unknown name or a wrong shape.
inline MaskSet MaskSetOf(const ParameterTable& table, const TorchMasks& masks,
                         MaskKind kind = MaskKind::kZero) {
  std::vector<Mask> converted(table.size());
  size_t used = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    const auto found = masks.find(table[i].name);
    if (found == masks.end()) continue;
    ++used;
    if (found->second.sizes() != at::IntArrayRef(table[i].shape)) {
      throw InvalidArgument("masks['" + table[i].name + "'] is of shape " +
                            TupleText(found->second.sizes().vec()) +
                            "; allowed is " + TupleText(table[i].shape) +
                            ".\nGive one mask element per weight.");
    }
    const at::Tensor kept = EmptyMask(table[i]);
    kept.copy_(found->second.ne(0));
    const std::span<const uint8_t> bytes = BytesOf(kept);
    converted[i].assign(bytes.begin(), bytes.end());
  }
  if (used != masks.size()) {
    throw InvalidArgument(
        "masks name a parameter that is not among the " +
        std::to_string(table.size()) +
        " that need a gradient.\nUse the names of named_parameters().");
  }
  const bool frozen = kind == MaskKind::kFreeze;
  return MaskSet(table, std::move(converted),
                 std::vector<bool>(table.size(), frozen));
}

// The reverse: a bool tensor of the parameter's shape. REQUIRES: not empty.
inline at::Tensor MaskTensor(const Mask& mask, const Parameter& parameter) {
  const at::Tensor bytes = EmptyMask(parameter);
  std::memcpy(bytes.data_ptr(), mask.data(), mask.size());
  return bytes.to(at::kBool);
}

}  // namespace internal

// Zeroes the smallest weights of each layer in place and returns the masks.
// Only parameters with at least two dimensions, not the first and the last of
// them. `amount` is the share of each layer, 0 <= amount < 1.
// InvalidArgument: out of range, or nothing to prune.
inline TorchMasks PruneByMagnitude(const TorchModel& model, double amount) {
  if (!(amount >= 0 && amount < 1)) {
    throw InvalidArgument("amount is " + std::to_string(amount) +
                          "; allowed is a share of at least 0 and below 1.\n"
                          "Give 0.7 to prune 70 % of the weights.");
  }
  std::vector<NamedTensor> layers = internal::TrainedOf(model);
  std::erase_if(layers, [](const auto& item) { return item.tensor.dim() < 2; });
  if (layers.size() < 3) {
    throw InvalidArgument(
        "model (" + model.name +
        ") has nothing to prune: " + std::to_string(layers.size()) +
        " parameters with two or more dimensions, and the first and the last "
        "are exempt.\nGive masks of your own.");
  }
  const at::NoGradGuard no_grad;
  TorchMasks masks;
  for (size_t i = 1; i + 1 < layers.size(); ++i) {
    const at::Tensor& weights = layers[i].tensor;
    const auto count = static_cast<int64_t>(
        std::nearbyint(amount * static_cast<double>(weights.numel())));
    const at::Tensor smallest = std::get<1>(weights.abs()
                                                .to(at::kFloat)
                                                .reshape({-1})
                                                .topk(count, 0, false, false));
    at::Tensor kept = at::ones({weights.numel()}, at::kBool);
    kept.index_fill_(0, smallest, 0);
    kept = kept.reshape(weights.sizes());
    weights.mul_(kept);
    masks[layers[i].name] = kept;
  }
  return masks;
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_MASKS_H_
