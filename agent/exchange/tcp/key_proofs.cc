#include "agent/exchange/tcp/key_proofs.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tls/mac.h"

namespace pactrain::agent {

using protocol::Digest;
using protocol::GenerationKey;
using protocol::KeyProof;

absl::StatusOr<std::vector<KeyProof>> KeyProofs::SetGenerations(
    const std::vector<GenerationKey>& shared) {
  std::map<Digest, Shared> before = std::exchange(shared_, {});
  std::vector<KeyProof> proofs;
  for (const auto& [generation, key] : shared) {
    const auto old = before.find(generation);
    if (old != before.end()) {
      shared_.insert(before.extract(old));
      continue;
    }
    shared_[generation].key = key;
    proofs.push_back({generation, MacOf(generation, key, /*own=*/true).bytes});
  }
  for (const KeyProof& proof : std::exchange(waiting_, {})) {
    RETURN_IF_ERROR(OnProof(proof));
  }
  return proofs;
}

absl::Status KeyProofs::OnProof(const KeyProof& proof) {
  const auto it = shared_.find(proof.generation);
  if (it != shared_.end()) return Check(proof, it->second);
  waiting_.push_back(proof);
  if (waiting_.size() > kMaxWaiting) waiting_.pop_front();
  return absl::OkStatus();
}

absl::Status KeyProofs::Check(const KeyProof& proof, Shared& shared) const {
  const base::Secret expected =
      MacOf(proof.generation, shared.key, /*own=*/false);
  if (CRYPTO_memcmp(expected.bytes.data(), proof.mac.data(),
                    base::Secret::kBytes) != 0) {
    return absl::UnauthenticatedError(absl::StrCat(
        "agent ", ends_.peer, " does not hold the key of generation ",
        proof.generation.Short(), ", or its proof is of another connection"));
  }
  shared.proven = true;
  return absl::OkStatus();
}

absl::Status KeyProofs::CheckHeard(const Digest& generation) const {
  const auto it = shared_.find(generation);
  if (it == shared_.end() || it->second.proven) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat(
      "agent ", ends_.peer, " speaks of generation ", generation.Short(),
      " and has not shown that it holds its key"));
}

base::Secret KeyProofs::MacOf(const Digest& generation, const base::Secret& key,
                              bool own) const {
  const std::string& sender = own ? ends_.own : ends_.peer;
  const std::string& receiver = own ? ends_.peer : ends_.own;
  return base::ComputeMac(key, {"pactrain generation", generation.ToString(),
                                sender, receiver, ends_.binding});
}

}  // namespace pactrain::agent
