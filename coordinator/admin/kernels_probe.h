// What the trainer library beside this program says of its GPU kernels.
#ifndef PACTRAIN_COORDINATOR_ADMIN_KERNELS_PROBE_H_
#define PACTRAIN_COORDINATOR_ADMIN_KERNELS_PROBE_H_

#include <string>

#include "absl/status/statusor.h"

namespace pactrain::coordinator {

struct Kernels {
  bool can_run = false;
  std::string words;  // On which GPUs, or why not.
};

// Where the library is: `named` (PACTRAIN_TRAINER_LIBRARY) if that is not
// empty, else beside this program or in the tarball's lib folder.
//   NotFound: in none of them.
absl::StatusOr<std::string> FindTrainerLibrary(const std::string& named);

// Loads it and asks it; it opens NVIDIA's driver, if there is one.
//   FailedPrecondition: it is no trainer library, or one of an older release.
absl::StatusOr<Kernels> AskKernels(const std::string& library);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_KERNELS_PROBE_H_
