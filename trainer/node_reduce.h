// This trainer's part in the node reduce: what the agent says goes to NCCL, and
// what NCCL has done to the agent. One bucket at a time.
//
// Rules: nothing begins before the agent says Go, and nothing is taken before
// it says Taken; after Close, or once NCCL does not come back, all goes by the
// host.
//
// The caller carries the messages and waits; OnTick() bounds what it waits for
// after a Close. Thread-compatible.
#ifndef PACTRAIN_TRAINER_NODE_REDUCE_H_
#define PACTRAIN_TRAINER_NODE_REDUCE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "trainer/core/packet.h"
#include "trainer/device_abi.h"
#include "trainer/nccl/communicator.h"
#include "trainer/wire.h"

namespace pactrain::trainer {

class NodeReduce {
 public:
  using Time = std::chrono::nanoseconds;  // Monotonic, since any fixed start.

  // `setup`: none where this trainer takes part in no reduce.
  NodeReduce(std::optional<nccl::Setup> setup, std::function<void()> wake)
      : setup_(std::move(setup)), wake_(std::move(wake)) {}

  void On(Time now, const AgentPacket& packet);

  // The communicator is open as far as this rank knows: buckets may be staged.
  bool open() const { return opened_ && comm_ != nullptr && epoch_ != 0; }
  // Begins with a bucket: the message to send, but for what describes it.
  // REQUIRES: open(), and no other bucket is staged.
  wire::Staged Stage(Time now, uint64_t step, uint32_t attempt, uint32_t bucket,
                     const nccl::Buffers& buffers);
  // The staged bucket's way, once it is known; then it is no longer staged.
  // `lost`: its stream does not come back, so the GPU is of no use any more.
  struct Answer {
    pt_path path = PT_PATH_HOST;
    std::string lost = {};
  };
  std::optional<Answer> TakeAnswer();
  bool staged() const { return job_.has_value(); }
  // How often OnTick() is to be called while it is staged.
  static constexpr Time kLook = std::chrono::milliseconds(5);
  void OnTick(Time now);

  // What is to be sent to the agent.
  using Reply = std::variant<wire::CollectiveId, wire::Opened, wire::BucketWord,
                             wire::CollectiveFailed>;
  std::vector<Reply> TakeReplies(Time now);

  // For people and metrics.
  pt_node report() const;

 private:
  struct Job {
    uint64_t step = 0;
    uint32_t attempt = 0;
    uint32_t bucket = 0;
    nccl::Buffers buffers;
    Time staged = {};
    bool going = false;
  };

  void On(Time now, const wire::MakeId& message);
  void On(Time now, const wire::Open& message);
  void On(Time now, const wire::BucketWord& message);
  void On(Time now, const wire::Close& message);
  // Makes the communicator's thread; false: this trainer takes part in none.
  bool Begin(wire::CollectiveEpoch epoch);
  bool IsOfJob(const wire::BucketWord& message) const;
  void Finish(pt_path path, std::string lost = "");

  const std::optional<nccl::Setup> setup_;
  const std::function<void()> wake_;
  std::unique_ptr<nccl::Communicator> comm_;
  wire::CollectiveEpoch epoch_ = 0;  // That is open, or opening; 0: none.
  bool opened_ = false;
  bool closed_ = false;  // By the agent, for good.
  uint32_t rank_ = 0;
  std::string reason_ = "the agent has not opened it yet";
  std::optional<Job> job_;
  std::optional<Answer> answer_;
  // NCCL was at the job when it was closed: since then.
  std::optional<Time> stopping_since_;
  bool stopped_ = false;
  pt_node counted_ = {};  // Its numbers.
};

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_NODE_REDUCE_H_
