// What is used of NCCL, declared as nccl.h has it: nothing of it is included or
// linked. nccl_abi_test compares the two where there is an nccl.h.
#ifndef PACTRAIN_TRAINER_NCCL_API_H_
#define PACTRAIN_TRAINER_NCCL_API_H_

#include <climits>
#include <cstddef>

namespace pactrain::trainer::nccl {

// ncclResult_t
inline constexpr int kSuccess = 0, kInProgress = 7;
// ncclDataType_t, ncclRedOp_t
inline constexpr int kFloat32 = 7, kSum = 0;

struct UniqueId {
  char internal[128];
};

// ncclConfig_t as of 2.27.3, the first release with commName. An older library
// reads as much of it as it knows, a newer one takes its defaults for the rest.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 22703;
  int blocking = INT_MIN;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;
  const char* comm_name = nullptr;
  int collnet_enable = INT_MIN;
  int cta_policy = INT_MIN;
  int shrink_share = INT_MIN;
  int nvls_ctas = INT_MIN;
};

using Comm = void*;  // ncclComm_t

struct Calls {
  int (*ncclGetVersion)(int* version);
  int (*ncclGetUniqueId)(UniqueId* id);
  int (*ncclCommInitRankConfig)(Comm* comm, int ranks, UniqueId id, int rank,
                                Config* config);
  int (*ncclCommGetAsyncError)(Comm comm, int* state);
  int (*ncclAllReduce)(const void* in, void* out, size_t count, int type,
                       int operation, Comm comm, void* stream);
  int (*ncclCommDestroy)(Comm comm);
  int (*ncclCommAbort)(Comm comm);
  const char* (*ncclGetErrorString)(int result);
  const char* (*ncclGetLastError)(Comm comm);
  // Since 2.28.7; null before.
  int (*ncclCommRevoke)(Comm comm, int flags);
};

}  // namespace pactrain::trainer::nccl

#endif  // PACTRAIN_TRAINER_NCCL_API_H_
