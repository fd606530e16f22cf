// Gives all ranks the values of rank 0's tensors, bit for bit.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_BROADCAST_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_BROADCAST_H_

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "trainer/cpp/libtorch/model.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/session.h"
#include "trainer/cpp/words.h"

namespace pactrain::internal {

inline uint64_t BytesOfAll(const std::vector<NamedTensor>& tensors) {
  uint64_t bytes = 0;
  for (const NamedTensor& item : tensors) bytes += item.tensor.nbytes();
  return bytes;
}

// As many steps as pieces of at most `piece_bytes` are needed. All ranks call
// it after the same step, with tensors of equal names and shapes.
// Throws the typed error of a step, on all ranks; tensors are as before.
// REQUIRES: no step is open; `piece_bytes` is a multiple of 4.
inline void BroadcastTensors(Session& session, std::string text,
                             std::vector<NamedTensor> tensors,
                             uint64_t piece_bytes) {
  std::erase_if(tensors, [](const auto& t) { return t.tensor.numel() == 0; });
  std::vector<uint8_t> bytes;
  bytes.reserve(BytesOfAll(tensors));
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor flat = Flat(tensor);
    const std::span<const uint8_t> values = BytesOf(flat);
    bytes.insert(bytes.end(), values.begin(), values.end());
    text += "\n" + name + " " + TupleText(tensor.sizes().vec()) + " torch.";
    text += c10::getDtypeNames(tensor.scalar_type()).first;
  }
  const Digest layout = DigestOf(text);
  const std::span<uint8_t> all(bytes);
  for (uint64_t first = 0; first < all.size(); first += piece_bytes) {
    BroadcastBytes(
        session,
        all.subspan(first, std::min<uint64_t>(piece_bytes, all.size() - first)),
        layout);
  }
  if (session.rank() == 0) return;
  const at::NoGradGuard no_grad;
  size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor values = at::empty_like(Flat(tensor));
    std::memcpy(values.data_ptr(), bytes.data() + offset, values.nbytes());
    offset += values.nbytes();
    if (tensor.is_non_overlapping_and_dense()) {
      Flat(tensor).copy_(values);
    } else {
      tensor.copy_(values.view(tensor.sizes()));
    }
  }
}

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_BROADCAST_H_
