// Mask sets as values of a state: bits in the order of indices, by name.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_MASK_STATE_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_MASK_STATE_H_

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/libtorch/masks.h"
#include "trainer/cpp/libtorch/model.h"
#include "trainer/cpp/masks.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/state_value.h"

namespace pactrain::internal {

inline StateValue GiveMasks(const ParameterTable& table, const MaskSet* masks) {
  if (masks == nullptr) return {};
  StateValue bits = StateValue::Dict();
  std::vector<StateValue> frozen;
  for (size_t i = 0; i < table.size(); ++i) {
    const Mask& mask = (*masks)[i];
    if (mask.empty()) continue;
    const at::Tensor kept = MaskTensor(mask, table[i]).contiguous();
    std::vector<uint8_t> packed = Pack(BytesOf(Flat(kept)));
    const auto size = static_cast<int64_t>(packed.size());
    bits.Add(table[i].name, StateTensor{"uint8", {size}, std::move(packed)});
    if (masks->is_frozen(i)) frozen.push_back(table[i].name);
  }
  return StateValue::Dict({{"masks", bits},
                           {"frozen", StateValue::List(std::move(frozen))},
                           {"unenforced", StateValue::List()}});
}

inline Mask TakeMask(const StateTensor& bits, const Parameter& parameter) {
  if (bits.bytes.size() != (parameter.elements() + 7) / 8) {
    throw RefusedError("The mask of " + parameter.name + " has " +
                       std::to_string(bits.bytes.size()) +
                       " bytes at the rank that gives its state.\nUse one "
                       "release of pactrain on all ranks.");
  }
  const Mask by_index = Unpack(bits.bytes, parameter.elements());
  const at::Tensor values = at::empty(parameter.shape, at::kByte);
  std::memcpy(values.data_ptr(), by_index.data(), by_index.size());
  const at::Tensor kept = EmptyMask(parameter);
  kept.copy_(values);
  const std::span<const uint8_t> bytes = BytesOf(kept);
  return Mask(bytes.begin(), bytes.end());
}

// RefusedError: these masks cannot be kept here.
inline std::optional<MaskSet> TakeMasks(const ParameterTable& table,
                                        const StateValue& state) {
  if (state.is_none()) return std::nullopt;
  if (!state.At("unenforced").AsList().empty()) {
    throw RefusedError(
        "The rank that gives its state has masks of torch.nn.utils.prune, "
        "which a C++ trainer cannot keep.\nUse pactrain.prune() instead.");
  }
  std::vector<Mask> masks(table.size());
  std::vector<bool> frozen(table.size());
  const StateValue& bits = state.At("masks");
  for (size_t i = 0; i < table.size(); ++i) {
    const StateValue* mask = bits.Find(table[i].name);
    if (mask != nullptr) masks[i] = TakeMask(mask->AsTensor(), table[i]);
    for (const StateValue& name : state.At("frozen").AsList()) {
      if (name.AsString() == table[i].name) frozen[i] = true;
    }
  }
  return MaskSet(table, std::move(masks), std::move(frozen));
}

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_MASK_STATE_H_
