#include "kernels/cuda/on_cpu.h"

#include <ucontext.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace pactrain::on_cpu {
namespace {

constexpr uint32_t kWarp = 32;
constexpr size_t kStackBytes = 64 << 10;

enum class State { kReady, kAtExchange, kAtBarrier, kDone };

struct Fiber {
  ucontext_t context = {};
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  State state = State::kReady;
  uint32_t exchanges = 0;
};

// A block of threads under way.
class Block {
 public:
  Block(uint32_t index, const Grid& grid, const std::function<void()>& kernel)
      : index_(index),
        order_(grid.order),
        kernel_(kernel),
        fibers_(grid.threads),
        // Two of each, in turn: who is late still reads the last one.
        words_(2 * grid.threads) {}

  uint32_t index() const { return index_; }
  uint32_t current() const { return current_; }

  void Run() {
    for (Fiber& fiber : fibers_) Start(fiber);
    for (;;) {
      bool ran = false, left = false;
      for (uint32_t i = 0; i < fibers_.size(); ++i) {
        current_ = order_ == Order::kForward ? i : fibers_.size() - 1 - i;
        Fiber& fiber = fibers_[current_];
        if (fiber.state == State::kReady) {
          swapcontext(&scheduler_, &fiber.context);
          ran = true;
        }
        left = left || fiber.state != State::kDone;
      }
      if (!left) return;
      Release();
      if (!ran) throw std::logic_error(Missing());
    }
  }

  void Wait(State state) {
    Fiber& fiber = fibers_[current_];
    fiber.state = state;
    swapcontext(&fiber.context, &scheduler_);
  }

  uint64_t Exchange(uint64_t value, uint32_t from) {
    const uint32_t self = current_;
    const size_t turn = (fibers_[self].exchanges++ % 2) * fibers_.size();
    words_[turn + self] = value;
    Wait(State::kAtExchange);
    if (from >= kWarp) return value;
    return words_[turn + self / kWarp * kWarp + from];
  }

 private:
  void Start(Fiber& fiber) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = &scheduler_;
    makecontext(&fiber.context, &Block::Enter, 0);
  }
  static void Enter();

  bool AllAt(State state, uint32_t first, uint32_t count) const {
    for (uint32_t i = first; i < first + count; ++i) {
      if (fibers_[i].state != state) return false;
    }
    return true;
  }
  void Free(uint32_t first, uint32_t count) {
    for (uint32_t i = first; i < first + count; ++i) {
      fibers_[i].state = State::kReady;
    }
  }
  void Release() {
    const auto threads = static_cast<uint32_t>(fibers_.size());
    for (uint32_t warp = 0; warp < threads; warp += kWarp) {
      if (AllAt(State::kAtExchange, warp, kWarp)) Free(warp, kWarp);
    }
    if (AllAt(State::kAtBarrier, 0, threads)) Free(0, threads);
  }
  std::string Missing() const {
    uint32_t exchange = 0, barrier = 0, done = 0;
    for (const Fiber& fiber : fibers_) {
      exchange += fiber.state == State::kAtExchange;
      barrier += fiber.state == State::kAtBarrier;
      done += fiber.state == State::kDone;
    }
    return "block " + std::to_string(index_) + ": lanes are missing; " +
           std::to_string(exchange) + " wait in an exchange of their warp, " +
           std::to_string(barrier) + " at __syncthreads(), " +
           std::to_string(done) + " have returned";
  }

  const uint32_t index_;
  const Order order_;
  const std::function<void()>& kernel_;
  std::vector<Fiber> fibers_;
  std::vector<uint64_t> words_;
  ucontext_t scheduler_ = {};
  uint32_t current_ = 0;
};

Block* running = nullptr;

void Block::Enter() {
  running->kernel_();
  running->fibers_[running->current_].state = State::kDone;
}

}  // namespace

void RunGrid(const Grid& grid, const std::function<void()>& kernel) {
  if (grid.threads == 0 || grid.threads % kWarp != 0) {
    throw std::logic_error("threads must be a multiple of 32");
  }
  for (uint32_t b = 0; b < grid.blocks; ++b) {
    Block block(b, grid, kernel);
    running = &block;
    block.Run();
  }
  running = nullptr;
}

Index ThreadIndex() { return {running->current()}; }
Index BlockIndex() { return {running->index()}; }
uint32_t LaneIndex() { return running->current() % kWarp; }
void SyncThreads() { running->Wait(State::kAtBarrier); }
uint64_t Exchange(uint64_t value, uint32_t from) {
  return running->Exchange(value, from);
}

}  // namespace pactrain::on_cpu
