#include "trainer/nccl/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

namespace pactrain::trainer::nccl {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// Between two looks at what NCCL or the GPU is at; the first is the shortest.
constexpr microseconds kShortest{20}, kLongest{1000};
// A few of its blocks do on NVLink, and the script's kernels need the rest.
constexpr int kMaxCtas = 8;

class Pause {
 public:
  void Take() {
    std::this_thread::sleep_for(next_);
    next_ = std::min(next_ * 2, kLongest);
  }

 private:
  microseconds next_ = kShortest;
};

struct MakeIdCall {};
struct OpenCall {
  UniqueId id;
  int ranks;
  int rank;
};
using Call = std::variant<MakeIdCall, OpenCall, Buffers>;

}  // namespace

// Shared with the thread, which may outlive the Communicator.
struct Communicator::State {
  explicit State(Setup given) : setup(std::move(given)) {}

  // ---- By the thread alone ----
  void Run();
  void Do(const MakeIdCall&);
  void Do(const OpenCall& call);
  void Do(const Buffers& buffers);
  // Waits until the communicator has done what it answered `result` to. False:
  // it failed, which has been said, or it was stopped.
  bool Settle(const char* call, int result);
  // The same for what is on the stream.
  bool AwaitStream(void* stream);
  void EndComm();
  void Fail(const std::string& text) {
    failed = true;
    Post({.what = Done::kFailed, .text = text});
  }

  // ---- By both ----
  void Post(Outcome outcome) {
    const std::lock_guard<std::mutex> lock(mu);
    outcomes.push_back(std::move(outcome));
    if (wake) wake();
  }
  void Give(Call call) {
    const std::lock_guard<std::mutex> lock(mu);
    calls.push_back(std::move(call));
    changed.notify_all();
  }
  bool stopped() {
    const std::lock_guard<std::mutex> lock(mu);
    return stop;
  }

  const Setup setup;
  Comm comm = nullptr;
  bool opened = false;
  bool failed = false;

  std::mutex mu;
  std::condition_variable changed;
  // All below are guarded by mu.
  std::function<void()> wake;
  std::deque<Call> calls;
  std::deque<Outcome> outcomes;
  bool stop = false;   // Break off.
  bool leave = false;  // End when nothing is left to do.
  bool over = false;   // The thread has ended.
};

void Communicator::State::Run() {
  const int error = setup.driver->calls().cuCtxSetCurrent(setup.context);
  if (error != 0) Fail(setup.driver->Words("cuCtxSetCurrent", error));
  for (;;) {
    Call call;
    {
      std::unique_lock<std::mutex> lock(mu);
      changed.wait(lock, [&] { return stop || leave || !calls.empty(); });
      if (stop || (leave && calls.empty())) break;
      call = std::move(calls.front());
      calls.pop_front();
    }
    if (failed) continue;
    std::visit([&](const auto& c) { Do(c); }, call);
  }
  EndComm();
  const std::lock_guard<std::mutex> lock(mu);
  over = true;
  outcomes.push_back({.what = Done::kStopped});
  if (wake) wake();
  changed.notify_all();
}

bool Communicator::State::Settle(const char* call, int result) {
  const Calls& nccl = setup.library->calls();
  for (Pause pause; result == kInProgress; pause.Take()) {
    if (stopped()) return false;
    // Its own result is that of the question.
    if (const int asked = nccl.ncclCommGetAsyncError(comm, &result);
        asked != kSuccess) {
      result = asked;
    }
  }
  if (result == kSuccess) return true;
  Fail(setup.library->Words(call, result));
  return false;
}

bool Communicator::State::AwaitStream(void* stream) {
  const cuda::Driver& driver = *setup.driver;
  for (Pause pause;; pause.Take()) {
    if (stopped()) return false;
    const int state = driver.calls().cuStreamQuery(stream);
    if (state == 0) return true;
    if (state != cuda::kErrorNotReady) {
      Fail(driver.Words("cuStreamQuery after ncclAllReduce", state));
      return false;
    }
    int result = kSuccess;
    const int asked =
        setup.library->calls().ncclCommGetAsyncError(comm, &result);
    if (asked != kSuccess || (result != kSuccess && result != kInProgress)) {
      Fail(setup.library->Words("ncclAllReduce",
                                asked != kSuccess ? asked : result));
      return false;
    }
  }
}

void Communicator::State::Do(const MakeIdCall&) {
  Outcome made = {.what = Done::kId};
  const int result = setup.library->calls().ncclGetUniqueId(&made.id);
  if (result != kSuccess) {
    return Fail(setup.library->Words("ncclGetUniqueId", result));
  }
  Post(std::move(made));
}

void Communicator::State::Do(const OpenCall& call) {
  Config config;
  config.blocking = 0;
  config.max_ctas = kMaxCtas;
  config.comm_name = "pactrain";
  const int result = setup.library->calls().ncclCommInitRankConfig(
      &comm, call.ranks, call.id, call.rank, &config);
  if (!Settle("ncclCommInitRankConfig", result)) return;
  opened = true;
  Post({.what = Done::kOpened});
}

void Communicator::State::Do(const Buffers& buffers) {
  const Clock::time_point begin = Clock::now();
  const int result = setup.library->calls().ncclAllReduce(
      buffers.in, buffers.out, buffers.elements, kFloat32, kSum, comm,
      buffers.stream);
  if (!Settle("ncclAllReduce", result) || !AwaitStream(buffers.stream)) return;
  // What went wrong on the way may be known only now.
  int last = kSuccess;
  const int asked = setup.library->calls().ncclCommGetAsyncError(comm, &last);
  if (!Settle("ncclAllReduce", asked != kSuccess ? asked : last)) return;
  Post({.what = Done::kReduced, .took = Clock::now() - begin});
}

void Communicator::State::EndComm() {
  if (comm == nullptr) return;
  const Calls& nccl = setup.library->calls();
  if (!failed && !stopped()) {
    nccl.ncclCommDestroy(comm);
    return;
  }
  if (nccl.ncclCommRevoke == nullptr || !opened) {
    nccl.ncclCommAbort(comm);
    return;
  }
  // Until its kernels are gone. Its memory stays.
  int result = nccl.ncclCommRevoke(comm, 0);
  for (Pause pause; result == kInProgress; pause.Take()) {
    if (nccl.ncclCommGetAsyncError(comm, &result) != kSuccess) return;
  }
}

Communicator::Communicator(Setup setup, std::function<void()> wake)
    : setup_(std::move(setup)),
      owner_(getpid()),
      state_(std::make_shared<State>(setup_)) {
  state_->wake = std::move(wake);
  std::thread([state = state_] { state->Run(); }).detach();
}

Communicator::~Communicator() {
  if (getpid() != owner_) return;
  std::unique_lock<std::mutex> lock(state_->mu);
  state_->leave = true;
  state_->changed.notify_all();
  const auto over = [&] { return state_->over; };
  if (!state_->changed.wait_for(lock, kPatience / 2, over)) {
    state_->stop = true;
    state_->changed.notify_all();
    state_->changed.wait_for(lock, kPatience / 2, over);
  }
  state_->wake = nullptr;  // Whoever is still there says nothing any more.
}

void Communicator::MakeId() { state_->Give(MakeIdCall{}); }

void Communicator::Open(const UniqueId& id, int ranks, int rank) {
  state_->Give(OpenCall{id, ranks, rank});
}

void Communicator::Reduce(const Buffers& buffers) { state_->Give(buffers); }

void Communicator::Stop() {
  const std::lock_guard<std::mutex> lock(state_->mu);
  state_->stop = true;
  state_->changed.notify_all();
}

std::optional<Communicator::Outcome> Communicator::Take() {
  const std::lock_guard<std::mutex> lock(state_->mu);
  if (state_->outcomes.empty()) return std::nullopt;
  Outcome outcome = std::move(state_->outcomes.front());
  state_->outcomes.pop_front();
  return outcome;
}

int Communicator::QueryStream(void* stream) const {
  return setup_.driver->calls().cuStreamQuery(stream);
}

}  // namespace pactrain::trainer::nccl
