// Memory that the agent shares with trainers: a sealed memfd, mapped.
//
// Nobody can shrink or grow it, so no access in it can fault once its pages are
// reserved, which is before a trainer gets it: too little memory is an error at
// attach, never a SIGBUS in training. Of a large one that takes seconds, so it
// is done in pieces, away from the event loop (memory_reserver.h). It is in no
// file system: nothing is left behind, whoever is killed.
//
// Thread-compatible, reserved() thread-safe. Owns mapping and descriptor.
#ifndef PACTRAIN_AGENT_LOCAL_SHARED_MEMORY_H_
#define PACTRAIN_AGENT_LOCAL_SHARED_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/fd.h"

namespace pactrain::agent {

class SharedMemory {
 public:
  enum class TrainerMay { kWrite, kOnlyRead };

  // `bytes` zeros that have no pages yet. REQUIRES: bytes > 0.
  //   ResourceExhausted: a limit of the system on one file.
  //   Internal:          the system refuses.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Create(
      const char* name, uint64_t bytes, TrainerMay trainer_may);
  // Takes the next pages, at most `at_most` bytes of them (> 0). REQUIRES: they
  // are there (CheckReserve()): the kernel would take page after page, then
  // kill somebody. Errors: as Create().
  absl::Status Reserve(uint64_t at_most);
  uint64_t reserved() const { return reserved_; }  // Bytes, from the first on.
  bool whole() const { return reserved_ == bytes_.size(); }
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // The agent may always write.
  absl::Span<uint8_t> bytes() const { return bytes_; }
  // What is passed to the trainer.
  int fd() const { return fd_.get(); }

 private:
  SharedMemory(base::Fd fd, absl::Span<uint8_t> bytes)
      : fd_(std::move(fd)), bytes_(bytes) {}

  const base::Fd fd_;
  const absl::Span<uint8_t> bytes_;
  std::atomic<uint64_t> reserved_ = 0;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_SHARED_MEMORY_H_
