// All that a rank has to have in common with the others: given, taken and
// compared.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_MODEL_STATE_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_MODEL_STATE_H_

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/agreement.h"
#include "trainer/cpp/config.h"
#include "trainer/cpp/errors.h"
#include "trainer/cpp/libtorch/broadcast.h"
#include "trainer/cpp/libtorch/enforcement.h"
#include "trainer/cpp/libtorch/mask_state.h"
#include "trainer/cpp/libtorch/model.h"
#include "trainer/cpp/libtorch/shared_objects.h"
#include "trainer/cpp/libtorch/state_tensors.h"
#include "trainer/cpp/libtorch/tracking.h"
#include "trainer/cpp/local_state.h"
#include "trainer/cpp/mask_keeper.h"
#include "trainer/cpp/masks.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/state_value.h"
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
  Tracking* tracking = nullptr;  // Null: masks are declared.
};

// Parameters (also without gradients), buffers, masks and what the program
// shares. Borrows its parts; used between steps.
class ModelState : public LocalState {
 public:
  explicit ModelState(const ModelParts& parts) : parts_(parts) {}

  Settings settings() const override {
    return SettingsOf(*parts_.config, BytesOfAll(parts_.model->buffers),
                      parts_.keeper->settle_steps());
  }
  Digest ParameterDigest() const override {
    return DigestOfValues(*parts_.trained);
  }
  std::vector<std::string> SharedNames() const override {
    return parts_.shared->names();
  }
  size_t UnnamedOptimizers() const override { return parts_.shared->unnamed(); }

  StateValue Give() const override {
    return StateValue::Dict({{"parameters", Tensors(parts_.model->parameters)},
                             {"buffers", Tensors(parts_.model->buffers)},
                             {"masks", Masks()},
                             {"shared", parts_.shared->Give()}});
  }

  void Take(const StateValue& state, Part part) override {
    // Where buffers are not synchronised every rank has its own.
    const bool buffers =
        part == Part::kNewcomer || parts_.config->buffer_sync_interval > 0;
    const StateValue& parameters = state.At("parameters");
    parts_.shared->Check(state.At("shared"));
    CheckEqual("parameter", parts_.model->parameters, parameters);
    if (buffers) {
      CheckEqual("buffer", parts_.model->buffers, state.At("buffers"));
      Copy(state.At("buffers"), parts_.model->buffers);
    }
    Copy(parameters, parts_.model->parameters);
    parts_.shared->Take(state.At("shared"), part == Part::kWithoutProgram);
    TakeMasksOf(state.At("masks"));
  }

  void Entered() override {
    parts_.keeper->Start();
    if (parts_.tracking != nullptr) parts_.tracking->Restart();
  }

 private:
  static StateValue Tensors(const std::vector<NamedTensor>& tensors) {
    StateValue state = StateValue::Dict();
    for (const NamedTensor& item : tensors) {
      state.Add(item.name, ToState(item.tensor));
    }
    return state;
  }

  // RefusedError: other names, shapes or types.
  static void CheckEqual(const char* what, const std::vector<NamedTensor>& mine,
                         const StateValue& theirs) {
    const auto refuse = [&](const std::string& name, const std::string& here,
                            const std::string& there) {
      if (here == there) return;
      throw RefusedError(std::string("The ") + what + " '" + name + "' is " +
                         here + " here, and " + there +
                         " at the rank that gives its state.\n"
                         "Make the same model on all ranks.");
    };
    for (const auto& [name, tensor] : mine) {
      const StateValue* other = theirs.Find(name);
      const std::string here =
          KindText(TorchName(tensor.scalar_type()), tensor.sizes().vec());
      refuse(name, here,
             other == nullptr
                 ? "missing"
                 : KindText(other->AsTensor().dtype, other->AsTensor().shape));
    }
    if (theirs.AsDict().size() == mine.size()) return;
    for (const StateItem& item : theirs.AsDict()) {
      const auto is = [&](const NamedTensor& own) {
        return own.name == item.key.AsString();
      };
      if (std::none_of(mine.begin(), mine.end(), is)) {
        refuse(
            item.key.AsString(), "missing",
            KindText(item.value.AsTensor().dtype, item.value.AsTensor().shape));
      }
    }
  }

  static void Copy(const StateValue& from, const std::vector<NamedTensor>& to) {
    const at::NoGradGuard no_grad;
    for (const NamedTensor& item : to) {
      item.tensor.detach().copy_(FromState(from.At(item.name).AsTensor()));
    }
  }

  StateValue Masks() const {
    StateValue values = StateValue::Dict();
    for (size_t i = 0; i < parts_.table->size(); ++i) {
      const at::Tensor& value = parts_.enforcement->value(i);
      if (value.defined()) values.Add((*parts_.table)[i].name, ToState(value));
    }
    const ParameterTable& table = *parts_.table;
    return StateValue::Dict(
        {{"current", GiveMasks(table, &parts_.keeper->current())},
         {"active", GiveMasks(table, parts_.keeper->active())},
         {"agreed", GiveMasks(table, parts_.enforcement->agreed())},
         {"values", values},
         {"settle_steps", parts_.keeper->settle_steps()},
         {"tolerate_outside", false}});
  }

  void TakeMasksOf(const StateValue& state) {
    const ParameterTable& table = *parts_.table;
    std::vector<at::Tensor> values(table.size());
    for (size_t i = 0; i < table.size(); ++i) {
      const StateValue* value = state.At("values").Find(table[i].name);
      if (value != nullptr) values[i] = FromState(value->AsTensor());
    }
    std::optional<MaskSet> current = TakeMasks(table, state.At("current"));
    if (!current.has_value()) throw InvalidArgument("A state has no masks.");
    parts_.keeper->Take(
        *std::move(current), TakeMasks(table, state.At("active")),
        static_cast<uint32_t>(state.At("settle_steps").AsInt()));
    parts_.enforcement->Resume(
        TakeMasks(table, state.At("agreed")), std::move(values),
        parts_.config->drops_gradients() ? parts_.keeper->active() : nullptr,
        parts_.shared->optimizers());
  }

  const ModelParts parts_;
};

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_MODEL_STATE_H_
