// What a node reduce needs of this thread's GPU, found at once or not at all.
#ifndef PACTRAIN_TRAINER_NCCL_SETUP_H_
#define PACTRAIN_TRAINER_NCCL_SETUP_H_

#include <string>
#include <variant>

#include "trainer/nccl/communicator.h"

namespace pactrain::trainer::nccl {

// For the GPU of the context that is current in this thread. The text says, in
// one line, why there can be no node reduce with it.
std::variant<Setup, std::string> FindSetup();

}  // namespace pactrain::trainer::nccl

#endif  // PACTRAIN_TRAINER_NCCL_SETUP_H_
