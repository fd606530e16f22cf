#include "trainer/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace pactrain::trainer {

Region::~Region() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

void Region::Forget() {
  if (data_ != nullptr) madvise(data_, bytes_, MADV_DONTNEED);
}

std::string Region::Map(base::Fd fd, uint64_t bytes, Access access) {
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kNeeded) != kNeeded) {
    return "the file descriptor is not a memfd sealed against resizing";
  }
  struct stat status = {};
  if (fstat(fd.get(), &status) != 0) return std::strerror(errno);
  if (static_cast<uint64_t>(status.st_size) != bytes) {
    return "the memfd has " + std::to_string(status.st_size) +
           " bytes, announced were " + std::to_string(bytes);
  }
  if (bytes == 0) return "the memfd is empty";
  const int protection =
      access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* mapped = mmap(nullptr, bytes, protection, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED) {
    return std::string("mapping the memfd failed: ") + std::strerror(errno);
  }
  data_ = static_cast<uint8_t*>(mapped);
  bytes_ = bytes;
  return "";
}

}  // namespace pactrain::trainer
