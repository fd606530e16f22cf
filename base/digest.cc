#include "base/digest.h"

#include "absl/strings/str_format.h"
#include "xxhash.h"

namespace pactrain::base {

std::string Digest::ToString() const {
  return absl::StrFormat("%016x%016x", hi, lo);
}

std::string Digest::Short() const { return ToString().substr(0, 8); }

Digest DigestOf(const void* data, size_t bytes) {
  const XXH128_hash_t h = XXH3_128bits(data, bytes);
  return {h.high64, h.low64};
}

struct DigestBuilder::State {
  alignas(64) XXH3_state_t xxh;
};

DigestBuilder::DigestBuilder() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}

DigestBuilder::~DigestBuilder() = default;

DigestBuilder& DigestBuilder::Add(absl::string_view field) {
  Add(static_cast<uint64_t>(field.size()));
  return AddRaw(field.data(), field.size());
}

DigestBuilder& DigestBuilder::Add(uint64_t value) {
  return AddRaw(&value, sizeof(value));
}

DigestBuilder& DigestBuilder::Add(const Digest& digest) {
  return Add(digest.hi).Add(digest.lo);
}

DigestBuilder& DigestBuilder::AddRaw(const void* data, size_t bytes) {
  XXH3_128bits_update(&state_->xxh, data, bytes);
  return *this;
}

Digest DigestBuilder::Build() const {
  const XXH128_hash_t h = XXH3_128bits_digest(&state_->xxh);
  return {h.high64, h.low64};
}

}  // namespace pactrain::base
