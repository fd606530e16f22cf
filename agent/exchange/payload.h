// Bytes that somebody keeps alive: what a data frame carries. Shared by send
// queues and the exchange, so that a forwarded frame is never copied.
#ifndef PACTRAIN_AGENT_EXCHANGE_PAYLOAD_H_
#define PACTRAIN_AGENT_EXCHANGE_PAYLOAD_H_

#include <cstdint>
#include <memory>

#include "absl/types/span.h"

namespace pactrain::agent {

struct Payload {
  std::shared_ptr<const void> owner;
  absl::Span<const uint8_t> bytes;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_EXCHANGE_PAYLOAD_H_
