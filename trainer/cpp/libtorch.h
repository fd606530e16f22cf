// Trains a libtorch model through the agent on this node.
//
//   const pactrain::TorchModel parts = pactrain::ModelOf(*net);
//   const auto masks = pactrain::PruneByMagnitude(parts, 0.7);
//   pactrain::TorchTrainer trainer(
//       parts, masks, {.config = pactrain::ConfigFromEnvironment()});
//   for (...) {
//     optimizer.zero_grad();
//     loss_of(net->forward(images), labels).backward();
//     trainer.Step(optimizer);
//   }
//
// The rule it keeps: after each step all ranks have bit-identical parameters.
// All ranks start from rank 0's weights, buffers and masks, apply the same mean
// of gradients or none, and mask weights only when all have agreed.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_H_

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/agreement.h"
#include "trainer/cpp/config.h"
#include "trainer/cpp/errors.h"
#include "trainer/cpp/mask_keeper.h"
#include "trainer/cpp/masks.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/session.h"
#include "trainer/cpp/types.h"
#include "trainer/cpp/words.h"

namespace pactrain {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// What a trainer needs to know of a model. Tensors are shared, not copied.
struct TorchModel {
  std::string name = {};                     // For error messages.
  std::vector<NamedTensor> parameters = {};  // That need a gradient, in order.
  std::vector<NamedTensor> frozen = {};      // Other parameters.
  std::vector<NamedTensor> buffers = {};  // BatchNorm statistics and the like.
};

inline TorchModel ModelOf(const torch::nn::Module& module) {
  TorchModel model = {.name = module.name()};
  for (const auto& item : module.named_parameters()) {
    auto& list = item.value().requires_grad() ? model.parameters : model.frozen;
    list.push_back({item.key(), item.value()});
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().numel() == 0) continue;
    model.buffers.push_back({item.key(), item.value()});
  }
  return model;
}

// By parameter name: a bool tensor of its shape, true where the weight is kept.
// Parameters left out are kept whole.
using TorchMasks = std::map<std::string, at::Tensor>;

namespace internal {

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
  for (const auto* list : {&model.parameters, &model.frozen, &model.buffers}) {
    CheckDevices(*list);
  }
  std::vector<Parameter> parameters;
  for (const NamedTensor& item : model.parameters) {
    parameters.push_back({.name = item.name,
                          .shape = item.tensor.sizes().vec(),
                          .dtype = DTypeOf(item)});
  }
  return ParameterTable(model.name, std::move(parameters));
}

// The bytes of a contiguous tensor.
inline std::span<uint8_t> BytesOf(const at::Tensor& tensor) {
  return {static_cast<uint8_t*>(tensor.data_ptr()), tensor.nbytes()};
}

inline MaskSet MaskSetOf(const TorchModel& model, const ParameterTable& table,
                         const TorchMasks& masks) {
  std::vector<Mask> converted(table.size());
  size_t used = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    const auto found = masks.find(table[i].name);
    if (found == masks.end()) continue;
    ++used;
    if (found->second.sizes() != model.parameters[i].tensor.sizes()) {
      throw InvalidArgument("masks['" + table[i].name + "'] is of shape " +
                            TupleText(found->second.sizes().vec()) +
                            "; allowed is " + TupleText(table[i].shape) +
                            ".\nGive one mask element per weight.");
    }
    const at::Tensor kept =
        found->second.ne(0).to(at::kCPU, at::kByte).contiguous();
    const std::span<uint8_t> bytes = BytesOf(kept);
    converted[i].assign(bytes.begin(), bytes.end());
  }
  if (used != masks.size()) {
    throw InvalidArgument(
        "masks name a parameter that is not among the " +
        std::to_string(table.size()) +
        " that need a gradient.\nUse the names of named_parameters().");
  }
  return MaskSet(table, std::move(converted));
}

inline at::Tensor MaskTensor(const Mask& mask, const at::Tensor& like) {
  const at::Tensor bytes = at::empty(like.sizes(), at::kByte);
  std::memcpy(bytes.data_ptr(), mask.data(), mask.size());
  return bytes.to(at::kBool);
}

// Multiplies what the optimizer remembers of one parameter by `mask`:
// otherwise momentum would go on moving pruned weights.
inline void MaskState(torch::optim::OptimizerParamState& state,
                      const at::Tensor& mask) {
  const auto apply = [&](at::Tensor& tensor) {
    if (tensor.defined()) tensor.mul_(mask);
  };
  if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(&state)) {
    apply(sgd->momentum_buffer());
  } else if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&state)) {
    apply(adam->exp_avg());
    apply(adam->exp_avg_sq());
    apply(adam->max_exp_avg_sq());
  } else if (auto* adamw =
                 dynamic_cast<torch::optim::AdamWParamState*>(&state)) {
    apply(adamw->exp_avg());
    apply(adamw->exp_avg_sq());
    apply(adamw->max_exp_avg_sq());
  } else if (auto* rms =
                 dynamic_cast<torch::optim::RMSpropParamState*>(&state)) {
    apply(rms->square_avg());
    apply(rms->momentum_buffer());
    apply(rms->grad_avg());
  } else if (auto* ada =
                 dynamic_cast<torch::optim::AdagradParamState*>(&state)) {
    apply(ada->sum());
  }
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
  std::vector<NamedTensor> layers;
  std::copy_if(model.parameters.begin(), model.parameters.end(),
               std::back_inserter(layers),
               [](const NamedTensor& item) { return item.tensor.dim() >= 2; });
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

struct TorchTrainerOptions {
  AttachConfig config;
  uint32_t model = 0;        // Several models of one process: 0, 1, ...
  uint64_t resume_step = 0;  // next_step() of an earlier trainer; 0: none.
  uint64_t bucket_bytes = 25 << 20;  // Gradients of one message, at most.
};

// One model attached to the agent on this node. Not thread-safe; not for use in
// a forked child.
class TorchTrainer {
 public:
  // All ranks call it; it returns when all are there and have rank 0's weights,
  // buffers and masks. `on_waiting` as for Session.
  // Throws InvalidArgument (an option), RefusedError (the kind of model, or
  // ranks differ), what Session throws, and PacTrainError if a weight outside
  // the masks is not zero.
  TorchTrainer(TorchModel model, const TorchMasks& masks,
               const TorchTrainerOptions& options,
               const Session::OnWaiting& on_waiting = nullptr)
      : model_(std::move(model)),
        config_(options.config),
        table_(internal::TableOf(model_)),
        layout_(table_, options.bucket_bytes) {
    // Checked before anything waits for other ranks.
    MaskSet declared = internal::MaskSetOf(model_, table_, masks);
    MakeBuckets();
    session_ = std::make_unique<Session>(OptionsFor(options), on_waiting);
    keeper_ = std::make_unique<MaskKeeper>(
        session_.get(), &table_, &layout_,
        internal::Agree(*session_, config_, table_, std::move(declared),
                        BufferBytes()));
    BroadcastWeights();
    BroadcastTensors(model_.frozen, "pactrain frozen parameters");
    SyncBuffers();
    CheckWeights();
    keeper_->Start();
    if (keeper_->Obey(session_->decision())) Activate();
  }

  TorchTrainer(const TorchTrainer&) = delete;
  TorchTrainer& operator=(const TorchTrainer&) = delete;

  // After backward(): exchanges gradients, steps the optimizer, masks weights.
  StepResult Step(torch::optim::Optimizer& optimizer) {
    const StepResult result = ExchangeGradients();
    optimizer.step();
    ApplyMasks(optimizer);
    return result;
  }

  // Makes each gradient the mean over all ranks; parameters without one count
  // as zeros. Throws the typed error of the step; all gradients are cleared
  // then, and the batch may be done again unless error.final().
  StepResult ExchangeGradients() {
    try {
      const at::NoGradGuard no_grad;
      const StepResult result = Exchange();
      Deliver(result);
      return result;
    } catch (...) {
      ClearGradients();
      throw;
    }
  }

  // Weights times the agreed masks, and once per activation the optimizer's
  // state, too (of torch's SGD, Adam, AdamW, RMSprop and Adagrad): otherwise
  // momentum and weight decay revive pruned weights. After each
  // optimizer.step().
  void ApplyMasks(torch::optim::Optimizer& optimizer) {
    const at::NoGradGuard no_grad;
    for (const auto& [index, factor] : factors_) {
      model_.parameters[index].tensor.mul_(factor);
    }
    if (std::find(cleaned_.begin(), cleaned_.end(), &optimizer) !=
        cleaned_.end()) {
      return;
    }
    cleaned_.push_back(&optimizer);
    for (const auto& [index, factor] : factors_) {
      auto& state = optimizer.state();
      const auto found =
          state.find(model_.parameters[index].tensor.unsafeGetTensorImpl());
      if (found != state.end()) internal::MaskState(*found->second, factor);
    }
  }

  // Replaces the masks. They act when all ranks have given the same ones.
  // InvalidArgument: an unknown name or a wrong shape.
  void SetMasks(const TorchMasks& masks) {
    keeper_->Replace(internal::MaskSetOf(model_, table_, masks));
  }

  // Gives all ranks rank 0's buffers, now; all call it between the same two
  // steps: before evaluating on all of them, say.
  void SyncBuffers() {
    last_buffer_sync_ = session_->next_step();
    BroadcastTensors(model_.buffers, "pactrain buffers");
    last_buffer_sync_ = session_->next_step();
  }

  // Over the values of all parameters, bit for bit.
  Digest ParameterDigest() const {
    std::string parts;
    for (const NamedTensor& item : model_.parameters) {
      const at::Tensor values = item.tensor.detach().contiguous();
      parts += DigestOf(internal::BytesOf(values)).ToBytes();
    }
    return DigestOf(parts);
  }

  // Weights that are not zero outside masks(); none once they are in force.
  uint64_t WeightsOutside() const {
    uint64_t count = 0;
    for (size_t i = 0; i < table_.size(); ++i) count += OutsideOf(i);
    return count;
  }

  const Session& session() const { return *session_; }
  Decision decision() const { return session_->decision(); }
  const MaskSet& masks() const { return keeper_->current(); }
  bool masks_active() const { return keeper_->active() != nullptr; }
  // What failed last after a step was committed (a vote, or buffers that stayed
  // as they were); empty: nothing did.
  const std::string& last_warning() const { return last_warning_; }

 private:
  SessionOptions OptionsFor(const TorchTrainerOptions& options) const {
    return {.config = options.config,
            .model = options.model,
            .model_digest = table_.ModelDigest(),
            .model_summary = table_.Summary(),
            .elements = table_.elements(),
            .slot_bytes = SlotBytes(),
            .resume_step = options.resume_step};
  }

  // Enough for any of the exchanges; a multiple of 64.
  uint64_t SlotBytes() const {
    const auto aligned = [](uint64_t bytes) { return (bytes + 63) / 64 * 64; };
    uint64_t gradients = 0;
    for (const BucketLayout& bucket : layout_.buckets()) {
      gradients += aligned(4 * bucket.elements);
    }
    return std::max(
        {gradients,
         aligned(4 * uint64_t{config_.world_size} * internal::kRecordWords),
         aligned(4 * internal::MaskWords(table_)), aligned(BufferBytes())});
  }

  uint64_t BufferBytes() const {
    uint64_t bytes = 0;
    for (const NamedTensor& item : model_.buffers)
      bytes += item.tensor.nbytes();
    return bytes;
  }

  void MakeBuckets() {
    for (const BucketLayout& bucket : layout_.buckets()) {
      const at::Tensor flat =
          at::empty({static_cast<int64_t>(bucket.elements)},
                    model_.parameters[bucket.first].tensor.scalar_type());
      flats_.push_back(flat);
      int64_t offset = 0;
      for (size_t i = bucket.first; i < bucket.end; ++i) {
        const at::Tensor& parameter = model_.parameters[i].tensor;
        pieces_.push_back(
            flat.narrow(0, offset, parameter.numel()).view(parameter.sizes()));
        offset += parameter.numel();
      }
    }
  }

  // Bucket by bucket, each a step of its own.
  void BroadcastWeights() {
    const at::NoGradGuard no_grad;
    for (size_t b = 0; b < flats_.size(); ++b) {
      const BucketLayout& bucket = layout_.buckets()[b];
      for (size_t i = bucket.first; i < bucket.end; ++i) {
        pieces_[i].copy_(model_.parameters[i].tensor);
      }
      internal::BroadcastBytes(
          *session_, config_.rank, internal::BytesOf(flats_[b]),
          DigestOf("pactrain weights" + bucket.digest.ToBytes()));
      for (size_t i = bucket.first; i < bucket.end; ++i) {
        model_.parameters[i].tensor.copy_(pieces_[i]);
      }
    }
  }

  // As many steps as the slot needs for them.
  void BroadcastTensors(const std::vector<NamedTensor>& tensors,
                        std::string text) {
    const at::NoGradGuard no_grad;
    std::vector<uint8_t> bytes;
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor values = tensor.contiguous();
      const std::span<uint8_t> view = internal::BytesOf(values);
      bytes.insert(bytes.end(), view.begin(), view.end());
      text += "\n" + name + " " + internal::TupleText(tensor.sizes().vec()) +
              " " + at::toString(tensor.scalar_type());
    }
    const Digest layout = DigestOf(text);
    const std::span<uint8_t> all(bytes);
    const uint64_t piece = SlotBytes();
    for (uint64_t first = 0; first < all.size(); first += piece) {
      internal::BroadcastBytes(
          *session_, config_.rank,
          all.subspan(first, std::min<uint64_t>(piece, all.size() - first)),
          layout);
    }
    size_t offset = 0;
    for (const auto& [name, tensor] : tensors) {
      const at::Tensor values = at::empty(tensor.sizes(), tensor.options());
      std::memcpy(values.data_ptr(), bytes.data() + offset, values.nbytes());
      offset += values.nbytes();
      tensor.copy_(values);
    }
  }

  uint64_t OutsideOf(size_t index) const {
    const Mask& mask = keeper_->current()[index];
    if (mask.empty()) return 0;
    const at::Tensor weights = model_.parameters[index].tensor.detach();
    const at::Tensor dropped = ~internal::MaskTensor(mask, weights);
    return static_cast<uint64_t>(
        weights.ne(0).logical_and(dropped).sum().item<int64_t>());
  }

  // PacTrainError: a weight outside the masks is not zero.
  void CheckWeights() const {
    for (size_t i = 0; i < table_.size(); ++i) {
      const uint64_t count = OutsideOf(i);
      if (count == 0) continue;
      throw PacTrainError(
          table_[i].name + " has " + internal::WithCommas(count) +
          " non-zero weights outside its mask: weights were "
          "loaded after pruning.\nPrune again after loading, or "
          "multiply the weights by their masks.");
    }
  }

  // Before the first bucket: a step that is begun must be completed.
  void CheckGradients() const {
    for (const NamedTensor& item : model_.parameters) {
      const at::Tensor& gradient = item.tensor.grad();
      if (gradient.defined() && gradient.layout() != at::kStrided) {
        throw RefusedError(item.name +
                           " has a sparse gradient, which is not supported.\n"
                           "Make the embedding with sparse(false).");
      }
    }
  }

  StepResult Exchange() {
    CheckGradients();
    Digest parameters;
    const bool check = session_->next_step() >= next_parameter_check_;
    if (check) {
      parameters = ParameterDigest();
      next_parameter_check_ =
          session_->next_step() + config_.parameter_check_interval;
    }
    try {
      for (uint32_t b = 0; b < flats_.size(); ++b) {
        Submit(b, check ? &parameters : nullptr);
      }
    } catch (const StepNotAppliedError&) {
      EndFailedStep();
      throw;
    }
    const StepResult result = session_->Wait();
    for (uint32_t b = 0; b < flats_.size(); ++b) {
      session_->Fetch(b, flats_[b].data_ptr());
    }
    return result;
  }

  // The step failed at all ranks while this one was still submitting.
  void EndFailedStep() {
    try {
      session_->Wait();
    } catch (const StepNotAppliedError&) {
      // The error that is being handled.
    }
  }

  void Submit(uint32_t b, const Digest* parameters) {
    const BucketLayout& bucket = layout_.buckets()[b];
    for (size_t i = bucket.first; i < bucket.end; ++i) {
      const at::Tensor& gradient = model_.parameters[i].tensor.grad();
      if (!gradient.defined()) {
        pieces_[i].zero_();
      } else {
        pieces_[i].copy_(gradient);
      }
    }
    const bool last = b + 1 == flats_.size();
    session_->Submit({.bucket = b,
                      .data = flats_[b].data_ptr(),
                      .elements = bucket.elements,
                      .dtype = bucket.dtype,
                      .op = Op::kSum,
                      .layout = bucket.digest,
                      .last = last,
                      .parameters = last ? parameters : nullptr});
  }

  // The step is committed: hands the means out and looks at what comes next.
  void Deliver(const StepResult& result) {
    for (size_t i = 0; i < table_.size(); ++i) {
      at::Tensor& parameter = model_.parameters[i].tensor;
      if (!parameter.grad().defined()) {
        parameter.mutable_grad() = at::empty_like(parameter);
      }
      parameter.mutable_grad().copy_(pieces_[i]);
    }
    // FULL, and TERNARY without a mask set.
    const bool whole = result.submitted_elements == result.elements;
    if ((whole || result.mode == Mode::kFull) && !result.dense) {
      for (const auto& [index, factor] : factors_) {
        // Not a product: NaN times zero is NaN.
        model_.parameters[index].tensor.mutable_grad().masked_fill_(
            factor.eq(0), 0);
      }
    }
    try {
      if (keeper_->Committed(result.next)) Activate();
      if (config_.buffer_sync_interval > 0 &&
          result.step + 1 >= last_buffer_sync_ + config_.buffer_sync_interval) {
        SyncBuffers();
      }
    } catch (const PacTrainError& error) {
      // Other ranks apply this step, so this one must, too. If the session is
      // over, the next step fails with the same error.
      last_warning_ = error.what();
    }
  }

  // The keeper's active masks are new.
  void Activate() {
    factors_.clear();
    cleaned_.clear();
    if (!config_.gse) return;
    for (size_t i = 0; i < table_.size(); ++i) {
      const Mask& mask = (*keeper_->active())[i];
      if (mask.empty()) continue;
      const at::Tensor& parameter = model_.parameters[i].tensor;
      factors_.emplace_back(
          i, internal::MaskTensor(mask, parameter).to(parameter.scalar_type()));
    }
  }

  void ClearGradients() {
    for (NamedTensor& item : model_.parameters) {
      item.tensor.mutable_grad() = at::Tensor();
    }
  }

  TorchModel model_;
  const AttachConfig config_;
  const ParameterTable table_;
  const Layout layout_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<MaskKeeper> keeper_;
  std::vector<at::Tensor> flats_;   // By bucket.
  std::vector<at::Tensor> pieces_;  // By parameter: views of the buckets.
  // Of parameters with an active mask: index, and 1 where kept, 0 elsewhere.
  std::vector<std::pair<size_t, at::Tensor>> factors_;
  std::vector<const torch::optim::Optimizer*> cleaned_;  // Since Activate().
  std::string last_warning_;
  uint64_t last_buffer_sync_ = 0;
  uint64_t next_parameter_check_ = 0;
};

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_H_
