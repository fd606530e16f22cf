#include "trainer/nccl/fake_nccl.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trainer/nccl/api.h"

namespace pactrain::trainer::nccl {
namespace {

constexpr int kRanks = 8;
constexpr size_t kCallElements = size_t{1} << 21;  // In one call.
constexpr int kUnhandledCudaError = 1, kInvalidArgument = 4, kRemoteError = 6;
constexpr int kNotReady = 600;  // The driver's.

FakeNccl* Settings() {
  static FakeNccl* const settings = [] {
    auto* made = new FakeNccl();
    if (const char* version = std::getenv("FAKE_NCCL_VERSION")) {
      made->version = std::atoi(version);
    }
    const char* text = std::getenv("FAKE_NCCL");
    if (text == nullptr) return made;
    const std::string words = text;
    const size_t first = words.find(':'), second = words.rfind(':');
    made->fault = words.substr(0, first);
    made->call = std::atoi(words.c_str() + first + 1);
    made->rank = std::atoi(words.c_str() + second + 1);
    return made;
  }();
  return settings;
}

// What all ranks map: zeros at first.
struct Shared {
  std::atomic<int> joined;
  std::atomic<uint64_t> posted[kRanks];  // Calls whose input lies here.
  std::atomic<uint64_t> done[kRanks];    // Calls of which nothing is read.
  float input[kRanks][kCallElements];
};

struct Communicator {
  int ranks = 0;
  int rank = 0;
  std::string name;
  Shared* shared = nullptr;
  std::atomic<uint64_t> calls{0};
  std::atomic<int> jobs{0};
  std::atomic<bool> revoked{false};
  std::atomic<int> error{kSuccess};
  std::atomic<bool> opened{false};
  std::atomic<bool> progresses{false};

  // At this call, of this rank.
  bool Has(const char* fault, uint64_t call) const {
    const FakeNccl& settings = *Settings();
    return settings.fault == fault && settings.rank == rank &&
           static_cast<uint64_t>(settings.call) == call;
  }
};

std::mutex mutex;
std::map<void*, int> busy;  // By stream: what is not done.

void Nap() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

[[noreturn]] void Hang() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

void Finish(Communicator& comm, void* stream) {
  --comm.jobs;
  const std::lock_guard<std::mutex> lock(mutex);
  --busy[stream];
}

bool AllHave(const std::atomic<uint64_t>* counts, int ranks, uint64_t least) {
  for (int r = 0; r < ranks; ++r) {
    if (counts[r] < least) return false;
  }
  return true;
}

// As a kernel would: begins at once, ends when all ranks' have.
void Reduce(std::shared_ptr<Communicator> comm, uint64_t call, const float* in,
            float* out, size_t count, void* stream) {
  Shared& shared = *comm->shared;
  while (!AllHave(shared.done, comm->ranks, call)) {
    if (comm->revoked) return Finish(*comm, stream);
    Nap();
  }
  std::memcpy(shared.input[comm->rank], in, 4 * count);
  shared.posted[comm->rank] = call + 1;
  while (!AllHave(shared.posted, comm->ranks, call + 1)) {
    if (comm->revoked) return Finish(*comm, stream);
    Nap();
  }
  std::memcpy(out, shared.input[0], 4 * count);
  for (int r = 1; r < comm->ranks; ++r) {
    for (size_t i = 0; i < count; ++i) out[i] += shared.input[r][i];
  }
  shared.done[comm->rank] = call + 1;
  Finish(*comm, stream);
}

// A kernel that waits for a peer that never comes.
void Wait(std::shared_ptr<Communicator> comm, bool deaf, void* stream) {
  while (deaf || !comm->revoked) Nap();
  Finish(*comm, stream);
}

void BreaksOff(const Communicator& comm) {
  if (Settings()->rank != comm.rank) return;
  const std::string& fault = Settings()->fault;
  if (fault == "revoke") Hang();
  if (fault == "killed_in_revoke") kill(getpid(), SIGKILL);
  if (fault == "stopped_in_revoke") kill(getpid(), SIGSTOP);
}

std::shared_ptr<Communicator>& Of(Comm comm) {
  return *static_cast<std::shared_ptr<Communicator>*>(comm);
}

}  // namespace
}  // namespace pactrain::trainer::nccl

using namespace pactrain::trainer::nccl;

extern "C" {

FakeNccl* pactrain_fake_nccl() { return Settings(); }

int pactrain_fake_nccl_query(void* stream) {
  const std::lock_guard<std::mutex> lock(mutex);
  return busy[stream] > 0 ? kNotReady : 0;
}

int ncclGetVersion(int* version) {
  *version = Settings()->version;
  return kSuccess;
}

int ncclGetUniqueId(UniqueId* id) {
  std::memset(id, 0, sizeof(*id));
  return getrandom(id->internal, 16, 0) == 16 ? kSuccess : kInvalidArgument;
}

const char* ncclGetErrorString(int result) {
  return result == kUnhandledCudaError ? "unhandled cuda error"
         : result == kRemoteError      ? "remote process exited"
                                       : "invalid argument";
}

const char* ncclGetLastError(Comm) { return "the stand-in was told to fail"; }

int ncclCommInitRankConfig(Comm* out, int ranks, UniqueId id, int rank,
                           Config* config) {
  if (ranks < 1 || ranks > kRanks || rank < 0 || rank >= ranks ||
      config->size != sizeof(Config) || config->magic != 0xcafebeef ||
      config->blocking != 0) {
    return kInvalidArgument;
  }
  auto comm = std::make_shared<Communicator>();
  comm->ranks = ranks;
  comm->rank = rank;
  comm->name = "/pactrain-fake-nccl-";
  for (int i = 0; i < 16; ++i) {
    const auto byte = static_cast<unsigned char>(id.internal[i]);
    comm->name += "0123456789abcdef"[byte / 16];
    comm->name += "0123456789abcdef"[byte % 16];
  }
  const int file = shm_open(comm->name.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return kInvalidArgument;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                      MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return kInvalidArgument;
  comm->shared = static_cast<Shared*>(memory);
  if (Settings()->rank == rank) {
    if (Settings()->fault == "open") comm->error = kUnhandledCudaError;
    comm->progresses = Settings()->fault == "open_progress";
  }
  if (comm->error == kSuccess) ++comm->shared->joined;
  *out = new std::shared_ptr<Communicator>(comm);
  // One that is revoked keeps its memory: known, so no leak.
  static auto* const handles = new std::vector<void*>;
  const std::lock_guard<std::mutex> lock(mutex);
  handles->push_back(*out);
  return kInProgress;
}

int ncclCommGetAsyncError(Comm handle, int* state) {
  Communicator& comm = *Of(handle);
  *state = comm.error;
  if (comm.error != kSuccess) return kSuccess;
  if (!comm.opened && comm.shared->joined == comm.ranks) {
    shm_unlink(comm.name.c_str());
    comm.opened = true;
  }
  const bool revokes = comm.revoked && comm.jobs > 0;
  if (!comm.opened || comm.progresses || revokes) *state = kInProgress;
  return kSuccess;
}

int ncclAllReduce(const void* in, void* out, size_t count, int type,
                  int operation, Comm handle, void* stream) {
  const std::shared_ptr<Communicator> comm = Of(handle);
  if (type != kFloat32 || operation != kSum || count > kCallElements ||
      !comm->opened || comm->revoked) {
    return kInvalidArgument;
  }
  const uint64_t call = comm->calls++;
  if (comm->Has("error", call)) return kUnhandledCudaError;
  if (comm->Has("call", call)) Hang();
  if (comm->Has("killed", call)) kill(getpid(), SIGKILL);
  if (comm->Has("stopped", call)) kill(getpid(), SIGSTOP);
  if (comm->Has("progress", call)) {
    comm->progresses = true;
    return kInProgress;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex);
    ++busy[stream];
  }
  ++comm->jobs;
  const bool deaf = comm->Has("deaf", call);
  if (comm->Has("late", call) || comm->Has("kernel", call) ||
      comm->Has("revoke", call) || comm->Has("killed_in_revoke", call) ||
      comm->Has("stopped_in_revoke", call) || deaf) {
    if (comm->Has("late", call)) comm->error = kRemoteError;
    std::thread(Wait, comm, deaf, stream).detach();
    return kSuccess;
  }
  std::thread(Reduce, comm, call, static_cast<const float*>(in),
              static_cast<float*>(out), count, stream)
      .detach();
  return kSuccess;
}

int ncclCommRevoke(Comm handle, int flags) {
  Communicator& comm = *Of(handle);
  if (flags != 0) return kInvalidArgument;
  comm.error = kSuccess;
  comm.progresses = false;
  comm.revoked = true;
  BreaksOff(comm);
  return kInProgress;
}

int ncclCommAbort(Comm handle) {
  Communicator& comm = *Of(handle);
  comm.revoked = true;
  BreaksOff(comm);
  while (comm.jobs > 0) Nap();
  shm_unlink(comm.name.c_str());
  return kSuccess;
}

int ncclCommDestroy(Comm handle) {
  Communicator& comm = *Of(handle);
  while (comm.jobs > 0) Nap();
  munmap(comm.shared, sizeof(Shared));
  delete static_cast<std::shared_ptr<Communicator>*>(handle);
  return kSuccess;
}

}  // extern "C"
