// Takes and gives back the pages of trainers' memory on a thread of its own, so
// that a large slot does not silence the agent.
//
// Takes them a piece at a time, of all that are asked for in turn: who asks for
// much keeps nobody waiting who asks for little. The thread is a nice one.
//
// Not thread-safe: to be used on the io_context's one thread, on which it calls
// back.
#ifndef PACTRAIN_AGENT_LOCAL_MEMORY_RESERVER_H_
#define PACTRAIN_AGENT_LOCAL_MEMORY_RESERVER_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "agent/local/memory_table.h"
#include "asio/io_context.hpp"
#include "asio/thread_pool.hpp"
#include "base/while_here.h"

namespace pactrain::agent {

class MemoryReserver {
 public:
  static constexpr uint64_t kPiece = 16 << 20;  // Some milliseconds.
  using Done = std::function<void(const absl::Status&)>;

  explicit MemoryReserver(asio::io_context& io);
  ~MemoryReserver();  // Waits for a piece at most; calls nobody back.

  // Calls `done` from a handler once both have their pages. Errors: as
  // SharedMemory::Reserve(). Gives up, without a call, what nobody else holds
  // any more.
  void Reserve(const TrainerBuffers& buffers, Done done);
  // Gives the system back what nobody else holds.
  void Free(TrainerBuffers buffers);

 private:
  struct Request;
  void Next(const std::shared_ptr<Request>& request);

  asio::io_context& io_;
  const base::WhileHere here_;
  asio::thread_pool thread_{1};
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_MEMORY_RESERVER_H_
