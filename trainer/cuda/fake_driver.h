// What tests tell the stand-in for libcuda.so.1, and what it has seen.
//
// Its device memory is the process's, its modules have our kernels whatever
// they are loaded from, and a launch runs on the CPU: at once, or when a stream
// of somebody else's comes to it. One thread at a time.
#ifndef PACTRAIN_TRAINER_CUDA_FAKE_DRIVER_H_
#define PACTRAIN_TRAINER_CUDA_FAKE_DRIVER_H_

#include <string>
#include <vector>

namespace pactrain::trainer::cuda {

struct FakeDriver {
  int version = 13000;                   // Or what FAKE_CUDA says.
  std::vector<int> capabilities = {90};  // Of each device, or FAKE_CAPABILITY.
  bool has_context = true;               // Of the last device.
  // The call that fails, and with what.
  std::string failing;
  int error = 0;

  std::vector<std::string> calls;  // By name, in order.
  int modules = 0;                 // Loaded and not unloaded.
  const void* image = nullptr;     // Of the last one.
  void* stream = nullptr;          // Of the last launch.
};

// Has `run(call)` called when the stream comes to it.
using FakeEnqueue = void(void* stream, void (*run)(void* call), void* call);
// What cuStreamQuery() says of a stream that somebody else works on.
using FakeQuery = int(void* stream);
// Whether somebody else's work has given this thread its context.
using FakeContext = bool();

// The library's function of this type and name gives the one that it has.
using FakeDriverOf = FakeDriver*();
inline constexpr char kFakeDriverOf[] = "pactrain_fake_driver";

}  // namespace pactrain::trainer::cuda

#endif  // PACTRAIN_TRAINER_CUDA_FAKE_DRIVER_H_
