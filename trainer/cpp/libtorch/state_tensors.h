// Tensors as values of a state, and back.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_STATE_TENSORS_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_STATE_TENSORS_H_

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>

#include <cstring>
#include <string>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/libtorch/model.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/state_codec.h"
#include "trainer/cpp/state_value.h"

namespace pactrain::internal {

// As torch.dtype prints it, without "torch.".
inline std::string TorchName(at::ScalarType type) {
  return std::string(c10::getDtypeNames(type).first);
}

// "torch.float32 (3, 4)".
inline std::string KindText(const std::string& dtype,
                            const std::vector<int64_t>& shape) {
  return "torch." + dtype + " " + TupleText(shape);
}

// InvalidArgument: its type is not sent.
inline StateTensor ToState(const at::Tensor& tensor) {
  const at::Tensor values =
      tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
  StateTensor state = {.dtype = TorchName(values.scalar_type()),
                       .shape = values.sizes().vec()};
  if (values.layout() != at::kStrided || StateElementBytes(state.dtype) == 0) {
    throw InvalidArgument("A tensor of " + state.dtype +
                          " cannot be sent; allowed are dense ones of plain "
                          "types.\nConvert it.");
  }
  const auto* bytes = static_cast<const uint8_t*>(values.const_data_ptr());
  state.bytes.assign(bytes, bytes + values.nbytes());
  return state;
}

// Of memory of its own.
inline at::Tensor FromState(const StateTensor& state) {
  constexpr at::ScalarType kTypes[] = {
      at::kBool,  at::kByte,   at::kChar,         at::kShort,
      at::kInt,   at::kLong,   at::kHalf,         at::kBFloat16,
      at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble};
  for (const at::ScalarType type : kTypes) {
    if (TorchName(type) != state.dtype) continue;
    at::Tensor tensor = at::empty(state.shape, type);
    if (!state.bytes.empty()) {
      std::memcpy(tensor.data_ptr(), state.bytes.data(), state.bytes.size());
    }
    return tensor;
  }
  throw InvalidArgument("A state has a tensor of " + state.dtype +
                        ".\nUse one release of pactrain on all ranks.");
}

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_STATE_TENSORS_H_
