// Masks of a libtorch model by name, and pruning.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_MASKS_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_MASKS_H_

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <regex>
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

// A bias or a gain, maybe with dimensions of size 1 to broadcast it.
inline bool IsVector(const at::Tensor& tensor) {
  const auto large = [](int64_t size) { return size > 1; };
  return std::count_if(tensor.sizes().begin(), tensor.sizes().end(), large) < 2;
}

// Whose masks are tracked: as those that may be pruned.
inline std::vector<size_t> Candidates(const std::vector<NamedTensor>& trained) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < trained.size(); ++i) {
    if (!IsVector(trained[i].tensor)) indices.push_back(i);
  }
  return indices;
}

// Of one part of a name. As in pactrain/roles.py, where a test compares them.
inline constexpr char kPositions[] =
    "(?:^|_)(?:(?:rel|abs)?pos(?:ition(?!_?wise)(?:al|s)?)?(?:_?(?:emb|enc)\\w*"
    ")?|[wr]?pe)(?:_|\\d|$)|(?:^|_)(?:rel|relative|row|col|column|temporal|"
    "spatial|time|timestep|frame|distance|level|scale|seg|segments?|modality|"
    "lang)_?(?:attn_)?emb|(?:^|_)emb(?:ed)?_time|(?:^|_)(?:rel_)?(?:height|"
    "width)_?rel|rel_(?:height|width)|(?:^|_)rel(?:ative)?_(?:\\w+_)?bias|(?:^|"
    "_)r_[wrs]_bias$|attention_biases$|token_type|type_emb|^segment$|^(?:ref_?"
    "points?|anchors?)(?:_emb\\w*)?$";
inline constexpr char kTokens[] =
    "^(?!emb(?:ed)?(?:ding)?s?_)\\w*_tokens?$|^latents?$|_latents$|(?:^|_)(?:"
    "query|queries)_(?:emb|feat)|(?:^|_)(?:object|learned|learnable|latent|"
    "decoder|track|content)_(?:query|queries)$|(?:^|_)prompts?(?:_?emb\\w*)?$";
inline constexpr char kRates[] =
    "(?:^|_)bias(?:es)?$|^log_|_logs?$|^Ds?$|(?:^|_)A_(?:real|imag)$|^time_(?:"
    "decay|first|faaaa|maa)$|^scale_shift_table$|^modulation$";
inline constexpr char kNorms[] = "(?:^|_)(?:norm|ln|bn)(?:_|\\d|$)|norm\\d*$";

// What is no layer, told by the last two parts of a name: the classes of
// modules are not known here.
inline bool IsNoLayer(const std::string& name) {
  static const std::regex kRoles(
      std::string(kPositions) + "|" + kTokens + "|" + kNorms,
      std::regex::icase);
  static const std::regex kOwnRoles(kRates, std::regex::icase);
  const size_t dot = name.rfind('.');
  if (std::regex_search(name.substr(dot + 1), kOwnRoles)) return true;
  if (dot == std::string::npos) return std::regex_search(name, kRoles);
  const size_t before = dot == 0 ? dot : name.rfind('.', dot - 1);
  const size_t first = before == std::string::npos ? 0 : before + 1;
  return std::regex_search(name.substr(dot + 1), kRoles) ||
         std::regex_search(name.substr(first, dot - first), kRoles);
}

// A mask without the `count` lowest scores; undefined if more of equal score
// than a few would have to be divided, which nothing but their index could do.
inline at::Tensor KeepHighest(const at::Tensor& scores, int64_t count) {
  const at::Tensor flat = scores.reshape({-1});
  if (count == 0) return at::ones_like(scores, at::kBool);
  const at::Tensor last = std::get<0>(flat.kthvalue(count));
  at::Tensor kept = scores.gt(last);
  const auto dropped = [&] { return kept.logical_not().sum().item<int64_t>(); };
  if (dropped() == count) return kept;
  kept = scores.ge(last);
  constexpr int64_t kFewTies = 4;
  const int64_t few = std::max(flat.numel() / 100, kFewTies);
  if (dropped() == 0 || count - dropped() > few) return {};
  return kept;
}

}  // namespace internal

// The masks of weights that were pruned before: what is not zero. Vectors, and
// parameters that have no zeros or nothing else, are left out.
// InvalidArgument: no weight is zero.
inline TorchMasks MasksOfZeros(const TorchModel& model) {
  TorchMasks masks;
  for (const NamedTensor& item : internal::TrainedOf(model)) {
    const at::Tensor kept = item.tensor.detach().ne(0);
    if (internal::IsVector(item.tensor) || kept.all().item<bool>()) continue;
    if (kept.any().item<bool>()) masks.emplace(item.name, kept);
  }
  if (masks.empty()) {
    throw InvalidArgument(
        "model has no zeros among its weights: nothing was pruned.\nLoad the "
        "pruned weights first, or call PruneByMagnitude(model, amount).");
  }
  return masks;
}

// Zeroes the smallest weights of each layer in place and returns the masks.
// Only parameters with at least two dimensions above 1: not the first and the
// last of them, no norms, positions, learned tokens, biases and rates, nor
// those with too many weights of equal size. `amount` is the share of each
// layer, 0 <= amount < 1. InvalidArgument: out of range, or nothing to prune.
inline TorchMasks PruneByMagnitude(const TorchModel& model, double amount) {
  if (!(amount >= 0 && amount < 1)) {
    throw InvalidArgument("amount is " + std::to_string(amount) +
                          "; allowed is a share of at least 0 and below 1.\n"
                          "Give 0.7 to prune 70 % of the weights.");
  }
  std::vector<NamedTensor> layers = internal::TrainedOf(model);
  std::erase_if(layers, [](const NamedTensor& item) {
    // A layer of one output is a layer: it may be the last.
    const bool gain = internal::IsVector(item.tensor) && item.tensor.dim() != 2;
    return gain || internal::IsNoLayer(item.name);
  });
  const at::NoGradGuard no_grad;
  TorchMasks masks;
  for (size_t i = 1; i + 1 < layers.size(); ++i) {
    const at::Tensor& weights = layers[i].tensor;
    if (internal::IsVector(weights)) continue;
    const auto count = static_cast<int64_t>(
        std::nearbyint(amount * static_cast<double>(weights.numel())));
    const at::Tensor kept =
        internal::KeepHighest(weights.abs().to(at::kFloat), count);
    if (!kept.defined()) continue;
    weights.mul_(kept);
    masks[layers[i].name] = kept;
  }
  if (masks.empty()) {
    throw InvalidArgument(
        "model (" + model.name + ") has nothing to prune: of its " +
        std::to_string(layers.size()) +
        " layers the first and the last are exempt, and those with too many "
        "weights of equal size.\nGive masks of your own.");
  }
  return masks;
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_MASKS_H_
