// What of this node matters to training on its GPUs, and what is wrong with it.
#ifndef PACTRAIN_COORDINATOR_ADMIN_GPU_NODE_H_
#define PACTRAIN_COORDINATOR_ADMIN_GPU_NODE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "coordinator/admin/finding.h"

namespace pactrain::coordinator {

struct GpuNode {
  std::string driver;  // "580.65.06"; empty: no NVIDIA driver.
  // torch's own NCCL; empty: it is not beside this package.
  std::string nccl_file;
  int nccl_version = 0;                  // 22809; 0: the file is no NCCL.
  std::optional<uint64_t> shm_bytes;     // Of /dev/shm; none: it is not there.
  std::optional<uint64_t> locked_limit;  // Bytes; none: no limit.
  std::string mps;                       // The folder of an MPS server's pipes.
  std::map<std::string, std::string> variables;  // CUDA_* and NCCL_*.
};

// `root`: "" or where another root of files is. `packages`: the folder in which
// Python finds PacTrain's package; may be empty. Loads the NCCL that it finds.
GpuNode LookAtGpuNode(const std::string& root, const std::string& packages,
                      char** environment);

// Nothing where there is no driver. Pure.
Findings CheckGpuNode(const GpuNode& node);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_GPU_NODE_H_
