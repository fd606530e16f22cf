// What tests tell the stand-in for libnccl.so.2.
//
// Its ranks are in processes, or threads, of one machine, and its GPU memory is
// the process's. Sums are made in rank order, by threads of its own.
#ifndef PACTRAIN_TRAINER_NCCL_FAKE_NCCL_H_
#define PACTRAIN_TRAINER_NCCL_FAKE_NCCL_H_

#include <string>

namespace pactrain::trainer::nccl {

struct FakeNccl {
  int version = 22907;
  // What goes wrong, and where; from FAKE_NCCL="fault:call:rank".
  //   error     the call says so
  //   late      the call is fine, the error comes afterwards
  //   progress  it is in progress for ever
  //   call      the call does not return
  //   kernel    what it launched does not end before it is revoked
  //   revoke    the same, and the call that revokes or aborts does not return
  //   deaf      what it launched never ends
  //   killed    the process is killed in the call
  //   stopped   it is stopped there
  //   killed_in_revoke, stopped_in_revoke  as revoke, where it is then that
  //   open      the communicator does not open: an error
  //   open_progress  the same: it is in progress for ever
  std::string fault;
  int call = 0;  // Of ncclAllReduce, from 0, in each communicator.
  int rank = 0;
};

// The library's function of this type and name gives the one that it has.
using FakeNcclOf = FakeNccl*();
inline constexpr char kFakeNcclOf[] = "pactrain_fake_nccl";
// What cuStreamQuery() is to say: a FakeQuery of trainer/cuda/fake_driver.h.
inline constexpr char kFakeNcclQuery[] = "pactrain_fake_nccl_query";

}  // namespace pactrain::trainer::nccl

#endif  // PACTRAIN_TRAINER_NCCL_FAKE_NCCL_H_
