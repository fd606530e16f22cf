// A libtorch model as a trainer sees it.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_MODEL_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_MODEL_H_

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/types.h"

namespace pactrain {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// What a trainer needs to know of a model. Tensors are shared, not copied.
struct TorchModel {
  std::string name = {};  // For error messages.
  // In registration order; those that require a gradient are trained.
  std::vector<NamedTensor> parameters = {};
  std::vector<NamedTensor> buffers = {};  // BatchNorm statistics and the like.
};

namespace internal {

// Once each, under the first name.
template <typename Items>
std::vector<NamedTensor> DistinctTensors(const Items& items) {
  std::vector<NamedTensor> tensors;
  for (const auto& item : items) {
    const at::Tensor& tensor = item.value();
    const bool known = std::any_of(
        tensors.begin(), tensors.end(),
        [&](const NamedTensor& other) { return other.tensor.is_same(tensor); });
    if (tensor.defined() && !known) tensors.push_back({item.key(), tensor});
  }
  return tensors;
}

}  // namespace internal

inline TorchModel ModelOf(const torch::nn::Module& module) {
  return {.name = module.name(),
          .parameters = internal::DistinctTensors(module.named_parameters()),
          .buffers = internal::DistinctTensors(module.named_buffers())};
}

namespace internal {

inline std::vector<NamedTensor> TrainedOf(const TorchModel& model) {
  std::vector<NamedTensor> trained;
  for (const NamedTensor& item : model.parameters) {
    if (item.tensor.requires_grad()) trained.push_back(item);
  }
  return trained;
}

// Refuses a model that is not on the CPU.
inline void CheckDevices(const std::vector<NamedTensor>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (tensor.device().is_cpu()) continue;
    throw RefusedError(name + " is on " + tensor.device().str() +
                       "; this release exchanges gradients of CPU models only."
                       "\nMove the model to the CPU.");
  }
}

inline DType DTypeOf(const NamedTensor& item) {
  const at::Tensor& tensor = item.tensor;
  if (tensor.scalar_type() == at::kFloat) return DType::kFloat32;
  if (tensor.scalar_type() == at::kBFloat16) return DType::kBfloat16;
  throw RefusedError(item.name + " is " + at::toString(tensor.scalar_type()) +
                     "; allowed are float32 and bfloat16.\n"
                     "Convert the model, or freeze this parameter.");
}

inline ParameterTable TableOf(const TorchModel& model) {
  CheckDevices(model.parameters);
  CheckDevices(model.buffers);
  std::vector<Parameter> parameters;
  for (const NamedTensor& item : TrainedOf(model)) {
    const at::Tensor& tensor = item.tensor;
    parameters.push_back({.name = item.name,
                          .shape = tensor.sizes().vec(),
                          .dtype = DTypeOf(item)});
    if (tensor.is_non_overlapping_and_dense()) {
      parameters.back().strides = tensor.strides().vec();
    }
  }
  return ParameterTable(model.name, std::move(parameters));
}

// The elements in the order of memory; a view where they are gapless.
inline at::Tensor Flat(const at::Tensor& tensor) {
  const at::Tensor detached = tensor.detach();
  if (detached.is_non_overlapping_and_dense()) {
    return detached.as_strided({detached.numel()}, {1});
  }
  return detached.contiguous().view({-1});
}

// REQUIRES: `flat` is gapless, as Flat() gives it.
inline std::span<const uint8_t> BytesOf(const at::Tensor& flat) {
  return {static_cast<const uint8_t*>(flat.const_data_ptr()), flat.nbytes()};
}

}  // namespace internal
}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_MODEL_H_
