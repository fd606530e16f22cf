// One training process: the real TrainerState and Membership, shared memory
// that is plain memory, and a script of steps. Its owner (the job) starts it
// anew when it ends.
#ifndef PACTRAIN_TESTS_SIM_SIM_TRAINER_H_
#define PACTRAIN_TESTS_SIM_SIM_TRAINER_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "agent/core/effects.h"
#include "tests/sim/mutant.h"
#include "tests/sim/oracle.h"
#include "tests/sim/workload.h"
#include "tests/sim/world.h"
#include "trainer/core/membership.h"
#include "trainer/core/trainer_state.h"

namespace pactrain::sim {

// Zeroed memory that starts at a multiple of wire::kSlotAlign.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) : bytes_(bytes), data_(Allocate(bytes)) {}
  uint8_t* data() { return data_.get(); }
  size_t size() const { return bytes_; }
  // The agent unmaps it: trainers keep what is there, and who reads or writes
  // at the agent's place after that is seen.
  void Unmap() {
    const std::unique_ptr<uint8_t, Free> old =
        std::exchange(data_, Allocate(bytes_));
    std::memcpy(data(), old.get(), bytes_);
    std::memset(old.get(), 0xee, bytes_);
  }

 private:
  struct Free {
    void operator()(uint8_t* p) const {
      ::operator delete[](p, std::align_val_t{64});
    }
  };
  static std::unique_ptr<uint8_t, Free> Allocate(size_t bytes) {
    return std::unique_ptr<uint8_t, Free>(new (std::align_val_t{64})
                                              uint8_t[bytes]());
  }
  size_t bytes_;
  std::unique_ptr<uint8_t, Free> data_;
};

// What an agent has mapped, for as long as one of its trainers has it.
class Mapping {
 public:
  explicit Mapping(size_t bytes)
      : memory_(std::make_shared<SharedMemory>(bytes)) {}
  ~Mapping() { memory_->Unmap(); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  const std::shared_ptr<SharedMemory>& memory() const { return memory_; }
  absl::Span<uint8_t> bytes() const {
    return absl::MakeSpan(memory_->data(), memory_->size());
  }

 private:
  const std::shared_ptr<SharedMemory> memory_;
};

class SimTrainer {
 public:
  using ToAgent =
      std::variant<wire::Hello, wire::Submit, wire::Vote, wire::Detach>;
  using FromAgent = decltype(agent::SendTrainer::message);

  struct Options {
    uint64_t process = 0;  // Never used twice.
    std::string launch;
    uint32_t rank = 0;        // That it asks for, and
    uint32_t world_size = 1;  // of its launch.
    protocol::OnShrink on_shrink = protocol::OnShrink::kAbort;
    int steps = 0;   // Applied to its state, after which it detaches; but
    int leaves = 0;  // after so many of its own, if not 0.
    int mask_epoch = 0;
    bool gse = true;
    uint64_t resume_step = 0;
    bool replace = false;
    absl::Duration step_deadline;
    absl::Duration pace = absl::Milliseconds(120);  // At most, between steps.
    std::function<void()> gives;  // Somebody takes this one's state from now.
    pt_kind kind = PT_PYTHON;
    Mutant mutant = Mutant::kNone;
  };
  // kRejoin: it lives and is to be attached again.
  enum class End { kDone, kFailed, kRejoin };
  SimTrainer(World* world, const Workload* workload, Oracle* oracle,
             const Options& options, std::function<void(ToAgent)> send,
             std::function<void(End)> ended);

  wire::Hello MakeHello() const { return state_->MakeHello(); }
  void SetMemory(std::shared_ptr<SharedMemory> slot,
                 std::shared_ptr<SharedMemory> result) {
    slot_ = std::move(slot);
    result_ = std::move(result);
  }
  // Of its newest connection.
  void OnMessage(const FromAgent& message);
  void OnClosed();  // The agent is gone.
  int connection() const { return connection_; }
  void Kill() { alive_ = false; }
  bool alive() const { return alive_; }
  uint32_t rank() const { return options_.rank; }
  bool attached() const { return state_->attached().has_value(); }
  const std::string& waiting() const { return state_->waiting_text(); }
  // Why it ended.
  const std::string& error_text() const { return error_text_; }
  // It lives and has applied steps, in a state that nothing has replaced yet,
  // and its agent says so.
  bool HoldsState() const {
    return alive_ && own_.applied > 0 && own_.lineage != 0 && !IsDone() &&
           !betrayed_;
  }
  // After its last committed step, as it said when it attached.
  uint64_t claimed_step() const { return claimed_step_; }
  // The newest that it was in.
  uint64_t generation() const { return generation_; }
  // Its agent says of its state what is not so.
  void Betray() { betrayed_ = true; }
  bool betrayed() const { return betrayed_; }
  // It lives and was in a generation, so it may hold a state.
  bool TookPart() const { return alive_ && generation_ != 0 && !IsDone(); }
  const RankState& state() const { return own_; }
  const std::string& launch() const { return options_.launch; }
  uint64_t process() const { return options_.process; }
  // It ended by itself, as it had all its steps.
  bool LeftInOrder() const { return left_in_order_; }
  // Of its newest attach.
  protocol::Digest attach_id() const { return {attach_id_.hi, attach_id_.lo}; }
  std::string Name() const;
  std::string Progress() const;

  // Faults, from the next step on.
  void ChangeMask(int epoch) { next_mask_epoch_ = epoch; }
  void UseWrongLayoutOnce() { wrong_layout_ = true; }
  void UseWrongParametersOnce() { wrong_parameters_ = true; }
  void AddNoiseOnce() { noise_ = true; }
  void Pause(absl::Duration time) { pause_ = time; }
  // Between two steps: it does not hear its agent meanwhile.
  void Rest(absl::Duration time) { rest_ = time; }
  // At once, as by SIGSTOP and SIGCONT.
  void Stop(absl::Duration time);
  bool stopped() const { return world_->now() < stopped_until_; }

 private:
  // What is said of the state that it holds.
  struct Claim {
    pt_digest lineage = {};  // Zero: none.
    uint64_t committed = 0;
    uint64_t next_step = 0;
    pt_digest parameters = {};
  };
  void MakeState(const Claim& claim, absl::Duration patience);
  // True: it does not hear this now, but later.
  bool HearsLater(std::function<void()> hear);
  void WhenOn(std::function<void()> what);
  void GiveUpAttaching();
  void OnAttached();
  bool IsDone() const;
  trainer::Time Now() const;
  void Later(absl::Duration delay, void (SimTrainer::*run)());
  void Handle(trainer::Event event);
  void Vote(bool inside);
  void OpenNextStep();
  void Continue();
  void NoteError(const trainer::Error& error);
  void OpenStep();
  size_t Buckets() const;  // Of the open step.
  uint64_t BucketElements(size_t bucket) const;
  void SubmitNext();
  void SubmitLater(absl::Duration delay);
  void Write(const trainer::Placement& placement);
  // Reads what it is told of, to be compared with what is committed.
  void OnWritten();
  std::vector<uint8_t> Read(
      const trainer::TrainerState::Results& results) const;
  void FinishStep();
  static int LevelsOf(trainer::Codec codec);  // 0: exact.
  void ReportCommit(const pt_step& report);
  void Finish(End end, const std::string& why = "");
  void Watch();

  // sim_trainer_membership.cc: until all have one state.
  pt_result Here(const trainer::Error& error) const;
  void BeginToSettle(const trainer::Error& error, bool newcomer);
  void Settle(const trainer::Error& error);  // What was asked for is done.
  void Do(const pt_todo& todo);
  void Awake();
  void Take(const pt_todo& done);
  void GiveUp(const pt_todo& failed);
  enum class Part { kCommon, kOwn };
  std::vector<uint8_t> StateBytes(Part part) const;

  World* const world_;
  const Workload* const workload_;
  Oracle* const oracle_;
  const Options options_;
  wire::Digest128 attach_id_ = {};
  wire::Digest128 seat_id_ = {};  // The one of its last generation; zero: none.
  std::array<uint8_t, wire::kSeatBytes> seat_ = {};  // Its secret.
  const std::function<void(ToAgent)> send_;
  const std::function<void(End)> ended_;
  std::unique_ptr<trainer::TrainerState> state_;
  int connection_ = 0;
  uint64_t claimed_step_ = 0;
  std::shared_ptr<SharedMemory> slot_;
  std::shared_ptr<SharedMemory> result_;
  bool alive_ = true;

  std::optional<int> next_mask_epoch_;
  bool wrong_layout_ = false;
  bool wrong_parameters_ = false;
  bool noise_ = false;
  absl::Duration pause_;
  absl::Duration rest_;
  absl::Duration deaf_until_;
  absl::Duration stopped_until_;

  // Its place and its state.
  uint64_t generation_ = 0;
  uint64_t instance_ = 0;  // Of it, as the oracle numbers them.
  uint32_t rank_ = 0;
  uint64_t reached_ = 0;  // The step after the last one committed in it.
  // Its own until another one is taken.
  RankState own_;
  bool left_in_order_ = false;
  bool betrayed_ = false;
  std::string error_text_;

  trainer::Membership membership_;
  std::optional<pt_todo> todo_;  // What it asks for; nothing: all have settled.
  bool newcomer_ = true;         // Its own state is of no generation yet.
  std::string there_text_;       // Of a pt_result.
  std::vector<uint8_t> given_common_, given_own_;

  // The open step.
  bool open_ = false;
  uint64_t step_ = 0;
  trainer::Codec codec_ = trainer::Codec::kFp32;  // Of its decision.
  Contribution contribution_;
  size_t next_bucket_ = 0;
  trainer::TrainerState::Results told_;  // Last in this step, and
  std::vector<uint8_t> read_;            // what it read then.
  int commits_ = 0;                      // Of this process.
};

}  // namespace pactrain::sim

#endif  // PACTRAIN_TESTS_SIM_SIM_TRAINER_H_
