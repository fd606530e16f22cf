// Mask sets: which elements of each parameter are kept.
//
// Masks are declared, never guessed from gradients: dead units look pruned, and
// differ between ranks. Weights outside a mask are zero or, if the parameter is
// frozen (kind "freeze"), keep the values they had.
#ifndef PACTRAIN_TRAINER_CPP_MASKS_H_
#define PACTRAIN_TRAINER_CPP_MASKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/buckets.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/session.h"
#include "trainer/cpp/types.h"

namespace pactrain {

// One byte per element in the order of its parameter's piece of a bucket: 1
// where it is kept, else 0. Empty: the parameter is kept whole.
using Mask = std::vector<uint8_t>;

namespace internal {

// Bits, least significant first; the last byte is filled with zeros.
inline std::vector<uint8_t> Pack(std::span<const uint8_t> kept) {
  std::vector<uint8_t> bits((kept.size() + 7) / 8);
  for (size_t i = 0; i < kept.size(); ++i) {
    bits[i / 8] |= static_cast<uint8_t>((kept[i] != 0 ? 1 : 0) << (i % 8));
  }
  return bits;
}

// The reverse of Pack(). REQUIRES: `bits` holds `elements` bits.
inline Mask Unpack(std::span<const uint8_t> bits, uint64_t elements) {
  Mask kept(elements);
  for (size_t i = 0; i < elements; ++i) kept[i] = bits[i / 8] >> (i % 8) & 1;
  return kept;
}

}  // namespace internal

// One mask per parameter of a table. Equal sets have equal digests; one that
// drops nothing has none.
class MaskSet {
 public:
  // `frozen` tells the kinds by parameter; those left out are not frozen.
  // REQUIRES: masks[i] is empty or has table[i].elements() bytes.
  MaskSet(const ParameterTable& table, std::vector<Mask> masks,
          std::vector<bool> frozen = {})
      : masks_(std::move(masks)),
        frozen_(std::move(frozen)),
        elements_(table.elements()) {
    masks_.resize(table.size());
    frozen_.resize(table.size());
    std::string parts = table.ModelDigest().ToBytes();
    bool any = false;
    for (size_t i = 0; i < table.size(); ++i) {
      const uint64_t all = table[i].elements();
      const auto dropped = static_cast<uint64_t>(
          std::count(masks_[i].begin(), masks_[i].end(), uint8_t{0}));
      kept_ += all - dropped;
      if (dropped == 0) {
        masks_[i].clear();
        frozen_[i] = false;
        continue;
      }
      any = true;
      parts += table[i].name;
      parts.push_back('\0');
      parts += DigestOf(internal::Pack(masks_[i])).ToBytes();
      if (frozen_[i]) parts += std::string("\0freeze", 7);
    }
    if (any) digest_ = DigestOf(parts);
  }

  const Mask& operator[](size_t parameter) const { return masks_[parameter]; }
  // True: weights outside the mask keep their values.
  bool is_frozen(size_t parameter) const { return frozen_[parameter]; }
  const Digest& digest() const { return digest_; }
  // True if nothing is dropped.
  bool empty() const { return digest_ == Digest(); }
  uint64_t kept() const { return kept_; }  // Elements, of the whole model.
  uint64_t elements() const { return elements_; }

  // True if every element kept here is kept there, too.
  bool IsInside(const MaskSet& other) const {
    for (size_t i = 0; i < masks_.size(); ++i) {
      const Mask& ours = masks_[i];
      const Mask& theirs = other.masks_[i];
      for (size_t j = 0; j < theirs.size(); ++j) {
        if (theirs[j] == 0 && (ours.empty() || ours[j] != 0)) return false;
      }
    }
    return true;
  }

  // What the trainer library needs to compact the buckets of this layout.
  BucketMasks ForLayout(const ParameterTable& table,
                        const Layout& layout) const {
    BucketMasks result = {.mask_digest = digest_,
                          .bucket_layouts = {},
                          .elements = {},
                          .bitmaps = {}};
    for (const BucketLayout& bucket : layout.buckets()) {
      Mask kept;
      kept.reserve(bucket.elements);
      for (const size_t i : bucket.parameters) {
        if (masks_[i].empty()) {
          kept.insert(kept.end(), table[i].elements(), 1);
        } else {
          kept.insert(kept.end(), masks_[i].begin(), masks_[i].end());
        }
      }
      result.bucket_layouts.push_back(bucket.digest);
      result.elements.push_back(bucket.elements);
      result.bitmaps.push_back(internal::Pack(kept));
    }
    return result;
  }

 private:
  std::vector<Mask> masks_;
  std::vector<bool> frozen_;
  Digest digest_;
  uint64_t kept_ = 0;
  uint64_t elements_ = 0;
};

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_MASKS_H_
