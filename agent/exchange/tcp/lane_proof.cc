#include "agent/exchange/tcp/lane_proof.h"

#include <openssl/crypto.h>

#include "base/secret.h"
#include "base/tls/mac.h"

namespace pactrain::agent {

protocol::LaneProof MakeLaneProof(const std::string& pair_binding,
                                  const std::string& lane_binding,
                                  const std::string& sender,
                                  const std::string& receiver) {
  const base::Secret key =
      base::ComputeMac(base::Secret(), {"pactrain pair", pair_binding});
  return {
      base::ComputeMac(key, {"pactrain lane", sender, receiver, lane_binding})
          .bytes};
}

bool IsSame(const protocol::LaneProof& a, const protocol::LaneProof& b) {
  return CRYPTO_memcmp(a.mac.data(), b.mac.data(), a.mac.size()) == 0;
}

}  // namespace pactrain::agent
