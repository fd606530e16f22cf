// One attached trainer: TrainerState with its socket, shared memory and clock.
//
// A step's memory is borrowed from Submit() until Wait() returns: it may have
// to be sent again, and results are written as they come.
//
// Thread-safe: one mutex; Submit() in one thread and Wait() in another is the
// ordinary use. Copying to and from shared memory happens under the mutex (a
// resubmission and a submission must not overlap); waiting does not.
#ifndef PACTRAIN_TRAINER_SESSION_H_
#define PACTRAIN_TRAINER_SESSION_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/agent_link.h"
#include "trainer/core/keep.h"
#include "trainer/core/trainer_state.h"
#include "trainer/mutex.h"
#include "trainer/node_reduce.h"
#include "trainer/region.h"

namespace pactrain::trainer {

class Session {
 public:
  // Blocks until all ranks are there. Errors as pt_attach(). `on_waiting` is
  // called from this thread.
  // `nccl`: what this trainer would take part in node reduces with.
  static Error Attach(TrainerOptions options, std::optional<nccl::Setup> nccl,
                      const std::function<void(const std::string&)>& on_waiting,
                      std::unique_ptr<Session>* session);
  // Tells the agent, unless this is a forked child of the one that attached.
  ~Session();

  // `out`: bucket.elements in its dtype, for the mean. It is complete once
  // Wait() has returned without error, and until then not to be read. Where it
  // overlaps `parts` nothing is written before the commit.
  Error Submit(const Bucket& bucket, Parts parts, void* out)
      PACTRAIN_EXCLUDES(mu_);
  // How a bucket is to be packed if it is submitted next; without a mask all of
  // it is, in fp32.
  Placement Plan(const Bucket& bucket) PACTRAIN_EXCLUDES(mu_);
  // A bucket that somebody else has packed.
  struct Packed {
    wire::Digest128 mask = {};
    uint64_t kept = 0;     // By that mask; zero: all elements.
    uint64_t outside = 0;  // Elements outside it that are not zero.
    double squares = 0;    // Of the kept ones, summed; if not PT_PATH_HOST.
    // As Reduce() said of this bucket.
    pt_path path = PT_PATH_HOST;
    // Puts all elements into the memory, in the bucket's dtype; false: cannot.
    // Called by whoever holds mu_.
    std::function<bool()> fill;
  };
  // `memory` has room for all elements in fp32 and holds the kept ones so, one
  // after the other. At the commit it holds their sums, or the mean of all
  // elements in the bucket's dtype if the step was dense.
  Error SubmitPacked(const Bucket& bucket, Packed packed, void* memory)
      PACTRAIN_EXCLUDES(mu_);
  // Sums a bucket that is packed on the GPU with the node's other trainers, if
  // they do so now. Blocks until it is known which way it goes; `in` stays as
  // it is, and after PT_PATH_HOST nothing of `out` may be used, now or later.
  //   kInternal: the GPU does not come back from NCCL; final.
  Error Reduce(const Bucket& bucket, const wire::Digest128& mask,
               const nccl::Buffers& buffers, pt_path* path)
      PACTRAIN_EXCLUDES(mu_);
  pt_node node_report() PACTRAIN_EXCLUDES(mu_);
  Error Wait(pt_step* report) PACTRAIN_EXCLUDES(mu_);
  Error SetMasks(MaskSet masks) PACTRAIN_EXCLUDES(mu_);
  // As TrainerState::Vote().
  Error Vote(const std::string& moved, wire::Vote message)
      PACTRAIN_EXCLUDES(mu_);
  Error TellKeep(const wire::Digest128& mask_digest,
                 const std::vector<ParameterKeep>& parameters)
      PACTRAIN_EXCLUDES(mu_);
  // `reason`: printable, fewer than wire::kMovedBytes.
  Error TellDevicePath(uint8_t path, const std::string& reason)
      PACTRAIN_EXCLUDES(mu_);
  void RequireDense(const std::string& reason) PACTRAIN_EXCLUDES(mu_);

  uint64_t next_step() PACTRAIN_EXCLUDES(mu_);
  wire::Decision decision() PACTRAIN_EXCLUDES(mu_);
  bool over() PACTRAIN_EXCLUDES(mu_);
  bool may_rejoin() PACTRAIN_EXCLUDES(mu_);
  // Says, also after the end of its generation, that it will not attach again.
  void Detach() PACTRAIN_EXCLUDES(mu_);
  // The destructor tells the agent nothing.
  void Abandon() PACTRAIN_EXCLUDES(mu_);
  const std::optional<nccl::Setup>& nccl() const { return nccl_; }
  const wire::Digest128& attach_id() const { return options_.hello.attach_id; }
  // What the agent said when it attached this trainer.
  const wire::Attached& attached() const { return attached_; }

  // The text of the last error that a call returned; empty: none yet.
  void SetErrorText(const std::string& text) PACTRAIN_EXCLUDES(mu_);
  std::string error_text() PACTRAIN_EXCLUDES(mu_);

 private:
  // The caller's memory of a bucket.
  struct Memory {
    Parts parts;
    void* out = nullptr;
    bool in_place = false;  // They overlap.
    size_t read_tiles = 0;  // Of the result.
    // Where the kept elements alone are, and no others yet.
    std::optional<Packed> packed = std::nullopt;
  };

  Session(TrainerOptions options, std::optional<nccl::Setup> nccl);

  Error Connect(const std::function<void(const std::string&)>& on_waiting)
      PACTRAIN_EXCLUDES(mu_);
  // Sends what is queued, handles what has come, up to the end of a step or an
  // event that the caller of Connect() must see; then the deadline.
  Event Pump() PACTRAIN_REQUIRES(mu_);
  Event Handle(AgentLink::Packet packet) PACTRAIN_REQUIRES(mu_);
  Event MapRegions(std::vector<base::Fd> fds) PACTRAIN_REQUIRES(mu_);
  Event Resubmit() PACTRAIN_REQUIRES(mu_);
  Error Take(const Bucket& bucket, Memory memory) PACTRAIN_REQUIRES(mu_);
  // Has all elements of the bucket, which is to be sent whole.
  Event Unpack(const Placement& placement) PACTRAIN_REQUIRES(mu_);
  // Writes a bucket into the slot and tells the agent, piece by piece.
  Event Fill(const Placement& placement) PACTRAIN_REQUIRES(mu_);
  // Of the mask set that it is packed by; zero: by none.
  wire::Digest128 MaskOf(const Placement& placement) const
      PACTRAIN_REQUIRES(mu_);
  // Tells the agent that the bucket is staged; false: it goes by the host.
  bool Stage(const Bucket& bucket, const wire::Digest128& mask,
             const nccl::Buffers& buffers) PACTRAIN_REQUIRES(mu_);
  // Writes to the caller's memory what has come of the results.
  void ReadResults() PACTRAIN_REQUIRES(mu_);
  // After FULL steps compacted ones touch a part of the shared memory only.
  void ForgetWholeStep(const pt_step& step) PACTRAIN_REQUIRES(mu_);
  void SendDetach() PACTRAIN_REQUIRES(mu_);
  template <typename Message>
  Event Send(const Message& message) PACTRAIN_REQUIRES(mu_);
  // A broken socket may still hold the agent's last words.
  Event LastWords() PACTRAIN_REQUIRES(mu_);
  // The agent has closed the connection.
  Event Closed() PACTRAIN_REQUIRES(mu_);

  const TrainerOptions options_;
  const std::optional<nccl::Setup> nccl_;
  const pid_t owner_;  // The process that attached.
  AgentLink link_;     // Poll() and Wake() without mu_, the rest with it.
  wire::Attached attached_ = {};  // Constant once Attach() has returned.

  Mutex mu_;
  TrainerState state_ PACTRAIN_GUARDED_BY(mu_);
  bool abandoned_ PACTRAIN_GUARDED_BY(mu_) = false;
  uint64_t decision_version_ PACTRAIN_GUARDED_BY(mu_) = 0;  // After it.
  bool whole_step_ PACTRAIN_GUARDED_BY(mu_) = false;        // The last one was.
  Region slot_ PACTRAIN_GUARDED_BY(mu_);
  Region result_ PACTRAIN_GUARDED_BY(mu_);
  std::vector<Memory> memory_ PACTRAIN_GUARDED_BY(mu_);  // By bucket.
  uint32_t read_attempt_ PACTRAIN_GUARDED_BY(mu_) =
      0;  // Of Memory::read_tiles.
  std::string error_text_ PACTRAIN_GUARDED_BY(mu_);
  NodeReduce node_ PACTRAIN_GUARDED_BY(mu_);  // Wakes link_.
};

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_SESSION_H_
