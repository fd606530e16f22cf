// Which way the gradients of a node's trainers go from their devices to the
// agent, for people.
//
// Pure. Thread-safe.
#ifndef PACTRAIN_AGENT_CORE_DEVICE_PATHS_H_
#define PACTRAIN_AGENT_CORE_DEVICE_PATHS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/collective.h"
#include "protocol/types.h"

namespace pactrain::agent {

// As one trainer has said: wire::DevicePath.
struct DevicePath {
  uint32_t rank = 0;
  uint8_t path = 0;
  std::string reason;
};

// Of all of a node in one: a trainer that asks for NCCL is "nccl" only while
// the node's communicator is open. Nothing: no trainer is on a device.
std::optional<protocol::DevicePath> PathOfNode(
    const std::vector<DevicePath>& trainers, const Collective& collective);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_DEVICE_PATHS_H_
