// All that a rank has to have in common with the others: given, taken and
// compared.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_MODEL_STATE_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_MODEL_STATE_H_

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/agreement.h"
#include "trainer/cpp/config.h"
#include "trainer/cpp/errors.h"
#include "trainer/cpp/libtorch/broadcast.h"
#include "trainer/cpp/libtorch/enforcement.h"
#include "trainer/cpp/libtorch/model.h"
#include "trainer/cpp/libtorch/shared_objects.h"
#include "trainer/cpp/mask_keeper.h"
#include "trainer/cpp/mask_tracker.h"
#include "trainer/cpp/masks.h"
#include "trainer/cpp/membership.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/types.h"

namespace pactrain::internal {

// Over the values of all trained parameters, bit for bit.
inline Digest DigestOfValues(const std::vector<NamedTensor>& trained) {
  std::string parts;
  for (const NamedTensor& item : trained) {
    const at::Tensor flat = Flat(item.tensor);
    parts += DigestOf(BytesOf(flat)).ToBytes();
  }
  return DigestOf(parts);
}

// What a ModelState is of.
struct ModelParts {
  const AttachConfig* config;
  const TorchModel* model;
  const std::vector<NamedTensor>* trained;
  const ParameterTable* table;
  MaskKeeper* keeper;
  Enforcement* enforcement;
  SharedObjects* shared;
  MaskTracker* tracker = nullptr;  // Null: masks are declared.
};

// Parameters (also without gradients), buffers, masks and what the program
// shares. Borrows its parts; used between steps.
//
// The form of the model's part, in all languages: words with settle_steps,
// tolerate_outside, and of the masks that are wanted, in force and agreed on
// each whether there are any, the masks, and a bit for each parameter that only
// Python ranks can have; then the bytes of the values of frozen weights, of
// parameters and buffers, in the order of indices.
class ModelState : public LocalState {
 public:
  explicit ModelState(const ModelParts& parts) : parts_(parts) {}

  std::string settings() const override {
    std::string lines;
    for (const auto* tensors :
         {&parts_.model->parameters, &parts_.model->buffers}) {
      for (const auto& [name, tensor] : *tensors) {
        if (tensor.numel() == 0) continue;
        lines += (lines.empty() ? "" : "\n") + name + " " +
                 TupleText(tensor.sizes().vec()) + " torch." +
                 std::string(c10::getDtypeNames(tensor.scalar_type()).first);
      }
    }
    return TextOf(SettingsOf(*parts_.config, BytesOfAll(parts_.model->buffers),
                             parts_.keeper->settle_steps())) +
           "parameters_and_buffers " + DigestOf(lines).ToString().substr(0, 8) +
           "\n";
  }
  Digest ParameterDigest() const override {
    return DigestOfValues(*parts_.trained);
  }
  std::string SharedText() const override { return parts_.shared->text(); }
  size_t UnnamedOptimizers() const override { return parts_.shared->unnamed(); }

  State Give() const override {
    const ParameterTable& table = *parts_.table;
    const MaskSet* agreed = parts_.enforcement->agreed();
    std::vector<uint32_t> words = {parts_.keeper->settle_steps(), 0};
    for (const MaskSet* masks :
         {&parts_.keeper->current(), parts_.keeper->active(), agreed}) {
      words.push_back(masks == nullptr ? 0 : 1);
      AppendMasks(words, table, masks);
      words.resize(words.size() + BitWords(table.size()));
    }
    State state = {.common = {}, .own = parts_.shared->Give()};
    state.common.resize(4 * words.size());
    std::memcpy(state.common.data(), words.data(), state.common.size());
    for (const at::Tensor& tensor : Tensors(agreed)) {
      const at::Tensor flat = tensor.detach().contiguous();
      const std::span<const uint8_t> bytes = BytesOf(flat);
      state.common.insert(state.common.end(), bytes.begin(), bytes.end());
    }
    return state;
  }

  void Take(const StateView& state, Part part) override {
    const bool optimizers_only = part == Part::kWithoutProgram;
    const auto own = parts_.shared->Parse(state.own, optimizers_only);
    std::vector<uint32_t> words(Words());
    CheckSize(state.common.size(), 4 * words.size(), false);
    std::memcpy(words.data(), state.common.data(), 4 * words.size());
    size_t next = 2;
    std::optional<MaskSet> current = TakeMaskSet(words, &next);
    const std::optional<MaskSet> active = TakeMaskSet(words, &next);
    std::optional<MaskSet> agreed = TakeMaskSet(words, &next);
    const MaskSet* frozen = agreed.has_value() ? &*agreed : nullptr;
    const std::vector<at::Tensor> mine = Tensors(frozen);
    uint64_t bytes = 4 * words.size();
    for (const at::Tensor& tensor : mine) bytes += tensor.nbytes();
    CheckSize(state.common.size(), bytes, true);

    // Where buffers are not synchronised every rank has its own.
    const bool buffers =
        part == Part::kNewcomer || parts_.config->buffer_sync_interval > 0;
    parts_.shared->Take(own, optimizers_only);  // First, since it may throw.
    const uint8_t* from = state.common.data() + 4 * words.size();
    const size_t last =
        mine.size() - (buffers ? 0 : parts_.model->buffers.size());
    std::vector<at::Tensor> values(parts_.table->size());
    size_t index = 0;
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < values.size(); ++i) {
      if (frozen == nullptr || !frozen->is_frozen(i)) continue;
      values[i] = ReadLike(mine[index++], &from);
    }
    for (; index < last; ++index) {
      mine[index].detach().copy_(ReadLike(mine[index], &from));
    }
    parts_.keeper->Take(
        current.has_value() ? *std::move(current) : MaskSet(*parts_.table, {}),
        active, words[0]);
    parts_.enforcement->Resume(
        std::move(agreed), std::move(values),
        parts_.config->drops_gradients() ? parts_.keeper->active() : nullptr,
        parts_.shared->optimizers());
  }

  void Entered() override {
    parts_.keeper->Start();
    if (parts_.tracker != nullptr) parts_.tracker->Restart();
  }

 private:
  size_t Words() const {
    const ParameterTable& table = *parts_.table;
    return 2 + 3 * (1 + PackedWords(table) + BitWords(table.size()));
  }

  // Values of what `agreed` freezes, parameters, buffers.
  std::vector<at::Tensor> Tensors(const MaskSet* agreed) const {
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < parts_.table->size(); ++i) {
      if (agreed == nullptr || !agreed->is_frozen(i)) continue;
      const at::Tensor& value = parts_.enforcement->value(i);
      tensors.push_back(value.defined() ? value : (*parts_.trained)[i].tensor);
    }
    for (const auto& item : parts_.model->parameters) {
      tensors.push_back(item.tensor);
    }
    for (const auto& item : parts_.model->buffers) {
      tensors.push_back(item.tensor);
    }
    return tensors;
  }

  // RefusedError: there are other masks there than can be kept here.
  std::optional<MaskSet> TakeMaskSet(const std::vector<uint32_t>& words,
                                     size_t* next) const {
    const bool there = words[(*next)++] != 0;
    MaskSet masks = internal::TakeMasks(words, next, *parts_.table);
    const Mask unenforced = TakeBits(words, next, parts_.table->size());
    if (std::find(unenforced.begin(), unenforced.end(), 1) !=
        unenforced.end()) {
      throw RefusedError(
          "The rank that gives its state has masks of torch.nn.utils.prune, "
          "which a C++ trainer cannot keep.\nUse pactrain.prune() instead.");
    }
    return there ? std::optional(std::move(masks)) : std::nullopt;
  }

  static void CheckSize(uint64_t came, uint64_t wanted, bool all) {
    if (all ? came == wanted : came >= wanted) return;
    throw RefusedError("The state that came has " + std::to_string(came) +
                       " bytes; this model's has " + std::to_string(wanted) +
                       ".\nUse one release of pactrain on all ranks.");
  }

  // A new tensor of the values at `*from`.
  static at::Tensor ReadLike(const at::Tensor& tensor, const uint8_t** from) {
    const at::Tensor values = at::empty(tensor.sizes(), tensor.options());
    if (values.nbytes() > 0) {
      std::memcpy(values.data_ptr(), *from, values.nbytes());
    }
    *from += values.nbytes();
    return values;
  }

  const ModelParts parts_;
};

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_MODEL_STATE_H_
