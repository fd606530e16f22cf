#include "agent/local/memory_reserver.h"

#include <sys/resource.h>

#include <utility>

#include "asio/post.hpp"

namespace pactrain::agent {
namespace {

constexpr int kNice = 10;

}  // namespace

struct MemoryReserver::Request {
  std::weak_ptr<SharedMemory> slot, result;
  Done done;
};

MemoryReserver::MemoryReserver(asio::io_context& io) : io_(io) {
  // Who trains is not to wait for who attaches. A thread has a nice value of
  // its own; where it cannot be set the thread works all the same.
  asio::post(thread_, [] { setpriority(PRIO_PROCESS, 0, kNice); });
}

MemoryReserver::~MemoryReserver() {
  thread_.stop();
  thread_.join();
}

void MemoryReserver::Reserve(const TrainerBuffers& buffers, Done done) {
  const auto request = std::make_shared<Request>(
      Request{buffers.slot, buffers.result, here_.Wrap(std::move(done))});
  asio::post(thread_, [this, request] { Next(request); });
}

void MemoryReserver::Next(const std::shared_ptr<Request>& request) {
  const auto slot = request->slot.lock();
  const auto result = request->result.lock();
  if (slot == nullptr || result == nullptr) return;
  const absl::Status taken = (result->whole() ? slot : result)->Reserve(kPiece);
  if (taken.ok() && !(slot->whole() && result->whole())) {
    asio::post(thread_, [this, request] { Next(request); });
    return;
  }
  asio::post(io_, [request, taken] { request->done(taken); });
}

void MemoryReserver::Free(TrainerBuffers buffers) {
  asio::post(thread_, [held = std::move(buffers)]() mutable { held = {}; });
}

}  // namespace pactrain::agent
