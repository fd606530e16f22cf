// Memory that the agent shares with trainers: a sealed memfd, mapped.
//
// Nobody can shrink or grow it, so no access in it can fault, and its pages are
// reserved when it is made: too little memory is an error at attach, never a
// SIGBUS in training. It is in no file system: nothing is left behind, whoever
// is killed.
//
// Thread-compatible. Owns mapping and descriptor.
#ifndef PACTRAIN_AGENT_LOCAL_SHARED_MEMORY_H_
#define PACTRAIN_AGENT_LOCAL_SHARED_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "agent/local/fd.h"

namespace pactrain::agent {

class SharedMemory {
 public:
  enum class TrainerMay { kWrite, kOnlyRead };

  // `bytes` zeros. REQUIRES: bytes > 0, and they are there (CheckReserve()):
  // the kernel would take page after page, then kill somebody.
  //   ResourceExhausted: a limit of the system on one file.
  //   Internal:          the system refuses.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Create(
      const char* name, uint64_t bytes, TrainerMay trainer_may);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // The agent may always write.
  absl::Span<uint8_t> bytes() const { return bytes_; }
  // What is passed to the trainer.
  int fd() const { return fd_.get(); }

 private:
  SharedMemory(Fd fd, absl::Span<uint8_t> bytes)
      : fd_(std::move(fd)), bytes_(bytes) {}

  const Fd fd_;
  const absl::Span<uint8_t> bytes_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_SHARED_MEMORY_H_
