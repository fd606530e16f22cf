// Memory shared with the agent: a memfd of the agent's, mapped.
//
// Invariant: only a memfd that can no longer shrink is mapped, so that reading
// or writing inside it never raises SIGBUS, whatever the agent does.
//
// Thread-compatible. Owns the mapping; the file descriptor is closed once
// mapped.
#ifndef PACTRAIN_TRAINER_REGION_H_
#define PACTRAIN_TRAINER_REGION_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/fd.h"

namespace pactrain::trainer {

class Region {
 public:
  enum class Access { kRead, kReadWrite };

  Region() = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  // Returns what is wrong, empty if mapped: not a memfd sealed against
  // shrinking and growing, another size than `bytes`, or the system refuses.
  // REQUIRES: nothing is mapped yet.
  std::string Map(base::Fd fd, uint64_t bytes, Access access);

  // Its pages count as this process's again only when they are touched; what is
  // in them stays as it is.
  void Forget();

  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_REGION_H_
