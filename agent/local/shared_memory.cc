#include "agent/local/shared_memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace pactrain::agent {
namespace {

absl::Status Failed(const char* what, uint64_t bytes) {
  const int error = errno;
  const std::string text = absl::StrCat(
      "shared memory of ", bytes, " bytes: ", what, ": ", std::strerror(error));
  return error == ENOMEM || error == ENOSPC || error == EFBIG
             ? absl::ResourceExhaustedError(text)
             : absl::InternalError(text);
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Create(
    const char* name, uint64_t bytes, TrainerMay trainer_may) {
  PT_CHECK(bytes > 0);
  base::Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Failed("memfd_create", bytes);
  const auto size = static_cast<off_t>(bytes);
  if (ftruncate(fd.get(), size) != 0) return Failed("ftruncate", bytes);
  void* mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapped == MAP_FAILED) return Failed("mmap", bytes);
  auto memory = std::shared_ptr<SharedMemory>(new SharedMemory(
      std::move(fd), absl::MakeSpan(static_cast<uint8_t*>(mapped), bytes)));
  // Our own mapping stays writable under F_SEAL_FUTURE_WRITE; a descriptor
  // opened read-only would not do, as it can be opened again through /proc.
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (trainer_may == TrainerMay::kOnlyRead) seals |= F_SEAL_FUTURE_WRITE;
  if (fcntl(memory->fd(), F_ADD_SEALS, seals) != 0) {
    return Failed("F_ADD_SEALS", bytes);
  }
  return memory;
}

absl::Status SharedMemory::Reserve(uint64_t at_most) {
  const uint64_t from = reserved_;
  const uint64_t count = std::min<uint64_t>(at_most, bytes_.size() - from);
  if (count == 0) return absl::OkStatus();
  if (fallocate(fd(), 0, static_cast<off_t>(from), static_cast<off_t>(count)) !=
      0) {
    return Failed("fallocate", bytes_.size());
  }
  reserved_ = from + count;
  return absl::OkStatus();
}

SharedMemory::~SharedMemory() { munmap(bytes_.data(), bytes_.size()); }

}  // namespace pactrain::agent
