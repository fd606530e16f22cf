// One communicator of NCCL, and the thread in which all its calls are made.
//
// Calls return at once; what came of them is taken by Take(), and `wake` is
// called when there is something to take. No call of NCCL is bounded by itself:
// whoever waits bounds the wait, and may leave a thread behind that hangs, with
// the communicator and its memory.
//
// Of a communicator that failed, or was told to stop, no result is used. It is
// revoked, and keeps its memory: a peer's kernel may still reach into it. One
// that never opened, or of an NCCL that cannot revoke (before 2.28.7), is
// aborted, for which NCCL waits for its own kernels and frees its memory.
//
// Thread-compatible. A forked child may only destroy it, which does nothing.
#ifndef PACTRAIN_TRAINER_NCCL_COMMUNICATOR_H_
#define PACTRAIN_TRAINER_NCCL_COMMUNICATOR_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "trainer/cuda/driver.h"
#include "trainer/nccl/library.h"

namespace pactrain::trainer::nccl {

// Where the communicator's calls are made, and what GPU that is.
struct Setup {
  std::shared_ptr<const Library> library;
  std::shared_ptr<const cuda::Driver> driver;
  void* context = nullptr;  // The driver's, of the GPU.
  // "GPU-00010203-...", as nvidia-smi has it; "MIG-..." of a part of one.
  std::string device = {};
  std::string gpu = {};  // Its kind, as the driver names it.
};

// fp32 on the GPU. `in` is complete, `out` is not used otherwise, and nobody
// else enqueues on the stream.
struct Buffers {
  const void* in = nullptr;
  void* out = nullptr;
  uint64_t elements = 0;
  void* stream = nullptr;
};

class Communicator {
 public:
  // How long the destructor waits for its thread.
  static constexpr std::chrono::seconds kPatience{2};

  // `wake` may be called from the thread, until the destructor returns.
  Communicator(Setup setup, std::function<void()> wake);
  // Ends the communicator in order, unless it was stopped.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  void MakeId();
  void Open(const UniqueId& id, int ranks, int rank);
  void Reduce(const Buffers& buffers);
  // Breaks off whatever it is at: all ranks do so, or the others' kernels wait
  // for ever. Idempotent.
  void Stop();

  enum class Done { kId, kOpened, kReduced, kFailed, kStopped };
  struct Outcome {
    Done what = Done::kFailed;
    UniqueId id = {};                    // kId
    std::string text = {};               // kFailed; one line.
    std::chrono::nanoseconds took = {};  // kReduced
  };
  std::optional<Outcome> Take();

  // What the driver says of this stream: 0, kErrorNotReady, or an error.
  int QueryStream(void* stream) const;

 private:
  struct State;

  const Setup setup_;
  const pid_t owner_;  // The process that has the thread.
  std::shared_ptr<State> state_;
};

}  // namespace pactrain::trainer::nccl

#endif  // PACTRAIN_TRAINER_NCCL_COMMUNICATOR_H_
