// Ranks that come and go: the end of a generation is the beginning of the next
// one.
//
// The trainer library decides (trainer/core/membership.h): when to attach again
// and what to say then, who takes whose state, whose gradients are void. Here
// is what touches the model: the state that this rank gives, and what it takes.
#ifndef PACTRAIN_TRAINER_CPP_MEMBERSHIP_H_
#define PACTRAIN_TRAINER_CPP_MEMBERSHIP_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/session.h"
#include "trainer/cpp/types.h"
#include "trainer/pactrain.h"

namespace pactrain::internal {

// `common`, the model's, has one form in all languages, `own` is for C++ ranks.
struct State {
  std::vector<uint8_t> common;
  std::vector<uint8_t> own;
};
struct StateView {
  std::span<const uint8_t> common;
  std::span<const uint8_t> own;
};

// All that a rank has to have in common with the others. Of one model; used
// between steps.
class LocalState {
 public:
  enum class Part {
    kNewcomer,  // All, also buffers that every rank has of its own.
    kWhole,     // All that a rank takes that was there before.
    // Without what the program itself goes on with: its place, say.
    kWithoutProgram,
  };

  virtual ~LocalState() = default;

  // "gse 1\n...": what is equal on all ranks.
  virtual std::string settings() const = 0;
  // Over the values of the trained parameters.
  virtual Digest ParameterDigest() const = 0;
  // Names and types of what is shared beside the model.
  virtual std::string SharedText() const = 0;
  // Optimizers that have moved the parameters and are not shared.
  virtual size_t UnnamedOptimizers() const = 0;

  // InvalidArgument: something shared cannot be sent.
  virtual State Give() const = 0;
  // Takes what Give() returned at another rank.
  // RefusedError: it does not fit; nothing was changed.
  virtual void Take(const StateView& state, Part part) = 0;
  // The session is in another generation, with the state of all.
  virtual void Entered() = 0;
};

// What a rank counts in steps, and has in common with the others: says when
// buffers are to be synchronised and parameters compared. `step` is the
// session's next one. Thread-compatible.
class StepClock {
 public:
  void Start(uint64_t step) { last_buffer_sync_ = last_check_ = step; }

  // In another generation, where all ranks are as far as the donor.
  void Renew(const pt_progress& donors, uint64_t step) {
    committed_ = donors.committed;
    last_buffer_sync_ = step - std::min(step, donors.buffer_sync_age);
    last_check_ = step - std::min(step, donors.parameter_check_age);
    check_next_ = true;
  }

  pt_progress ProgressAt(uint64_t step) const {
    return {committed_, Age(step, last_buffer_sync_), Age(step, last_check_)};
  }

  void Committed() { ++committed_; }
  uint64_t committed() const { return committed_; }

  // True if parameters are to be compared in this step; says so once.
  bool TakeParameterCheck(uint64_t step, uint32_t interval) {
    if (!check_next_ && Age(step, last_check_) < interval) return false;
    check_next_ = false;
    last_check_ = step;
    return true;
  }

  bool BufferSyncDue(uint64_t step, uint32_t interval) const {
    return interval > 0 && Age(step, last_buffer_sync_) >= interval;
  }
  void BuffersSynced(uint64_t step) { last_buffer_sync_ = step; }

 private:
  static uint64_t Age(uint64_t step, uint64_t since) {
    return step - std::min(step, since);
  }

  uint64_t committed_ = 0;
  uint64_t last_buffer_sync_ = 0;
  uint64_t last_check_ = 0;
  bool check_next_ = true;
};

// Keeps one model in its job. Used by the thread that trains, while no step is
// open. Borrows all that it is given. `on_event` is told what happens.
class Membership {
 public:
  Membership(Session* session, LocalState* local, StepClock* clock,
             uint64_t piece_bytes, Session::OnWaiting on_event)
      : session_(session),
        local_(local),
        clock_(clock),
        on_event_(std::move(on_event)) {
    const pt_membership_options options = {
        .kind = PT_CPP,
        .agent_returns = 1,
        .piece_bytes = piece_bytes,
        .attach_timeout_ms = static_cast<uint32_t>(
            session->config().attach_timeout_seconds * 1000)};
    core_.reset(pt_membership_new(&options));
  }

  // A rank that joins a running job takes its state from one that has it;
  // together with all.
  // RefusedError: this model, or what it shares, is not the job's; or no C++
  // rank has the state of optimizers. ResyncRequiredError: nobody is left who
  // has the state. REQUIRES: the session has a donor.
  void Join() {
    const pt_todo done = Settle({}, nullptr);
    local_->Take(StateOf(done), LocalState::Part::kNewcomer);
    CheckTaken(done);
    Enter(done);
  }

  // True if a step failed with this error because the generation is over, and
  // there may be a next one.
  bool MayGoOn(const PacTrainError& error) const {
    return session_->config().elastic() &&
           pt_may_go_on(error.code(), session_->is_final(),
                        session_->may_rejoin(), /*agent_returns=*/1) != 0;
  }

  // Enters the next generation after a step failed with an error of this text.
  //
  // True: this rank is as far as the others, and its gradients are still to be
  // submitted. False: the others have made the step with them or without, and
  // this rank has their state. Its gradients count for nothing: what the
  // program's optimizer still does is undone by Undo(), and at the next step
  // Catch() takes what the program goes on with, too.
  //
  // REQUIRES: MayGoOn() of the error. Throws the error that ends the session.
  bool GoOn(const std::string& text) {
    pending_.reset();
    const pt_todo done =
        Settle(clock_->ProgressAt(session_->next_step()), text.c_str());
    if (done.kept == 0) {
      local_->Take(StateOf(done), LocalState::Part::kWithoutProgram);
      CheckTaken(done);
      pending_ = StateOf(done);
    }
    Enter(done);
    return done.kept != 0;
  }

  // After a step of an optimizer: at a rank that was left behind it is one too
  // many, since weight decay and momentum move weights also where gradients are
  // zero.
  void Undo() {
    if (!pending_.has_value()) return;
    local_->Take(*pending_, LocalState::Part::kWithoutProgram);
  }

  // Before the next step: the program of a rank that was left behind has come
  // to where the donor's was when it gave its state.
  void Catch() {
    if (!pending_.has_value()) return;
    local_->Take(*std::exchange(pending_, std::nullopt),
                 LocalState::Part::kWhole);
    pt_membership_forget(core_.get());
  }

 private:
  struct Free {
    void operator()(pt_membership* core) const { pt_membership_free(core); }
  };

  // It lies in the library until that is told to forget it.
  static StateView StateOf(const pt_todo& done) {
    const auto view = [](const void* data, uint64_t bytes) {
      return std::span(static_cast<const uint8_t*>(data), bytes);
    };
    return {view(done.common, done.common_bytes),
            view(done.own, done.own_bytes)};
  }

  // Does what the library asks for until all ranks of a generation have one
  // state. `error` has ended the last one; null: a newcomer's first.
  pt_todo Settle(const pt_progress& progress, const char* error) {
    const std::string settings = local_->settings();
    const std::string shared = local_->SharedText();
    const pt_mine mine = {.newcomer = error == nullptr ? 1 : 0,
                          .progress = progress,
                          .parameters = local_->ParameterDigest().ToC(),
                          .settings = settings.c_str(),
                          .shared = shared.c_str(),
                          .unshared_optimizers = static_cast<uint32_t>(
                              local_->UnnamedOptimizers())};
    pt_result result = Here();
    result.text = error;
    State given;
    pt_todo todo;
    pt_membership_begin(core_.get(), &mine, &result, NowMs(), &todo);
    while (todo.action != PT_DONE) {
      Tell(todo);
      if (todo.action == PT_FAIL) {
        if (todo.leaves != 0) session_->Leave();
        ThrowError(todo.code, todo.text, true);
      }
      std::string text;
      int code = PT_OK;
      try {
        Do(todo, given);
      } catch (const PacTrainError& failed) {
        code = failed.code();
        text = failed.what();
      }
      result = Here();
      result.code = code;
      result.text = text.c_str();
      result.final = session_->is_final() ? 1 : 0;
      result.may_rejoin = todo.action == PT_ATTACH
                              ? Session::last_attach_may_rejoin()
                              : session_->may_rejoin();
      result.common = given.common.data();
      result.common_bytes = given.common.size();
      result.own = given.own.data();
      result.own_bytes = given.own.size();
      pt_membership_next(core_.get(), &result, NowMs(), &todo);
    }
    Tell(todo);
    return todo;
  }

  void Do(const pt_todo& todo, State& given) {
    if (todo.action == PT_ATTACH) {
      given = {};
      session_->Reattach(todo);
    } else if (todo.action == PT_SLEEP) {
      std::this_thread::sleep_for(std::chrono::milliseconds(todo.ms));
    } else if (todo.action == PT_GIVE) {
      given = local_->Give();
    } else {
      session_->Submit({.bucket = 0,
                        .parts = {{todo.in, todo.words}},
                        .out = todo.out,
                        .dtype = DType::kFloat32,
                        .op = Op::kXor,
                        .layout = Digest::FromC(todo.layout),
                        .last = true});
      session_->Wait();
    }
  }

  pt_result Here() const {
    pt_result here = {};
    here.generation = session_->generation();
    here.resume_step = session_->resume_step();
    here.lineage = session_->lineage().ToC();
    here.rank = session_->rank();
    here.world_size = session_->world_size();
    here.donor = session_->donor().value_or(PT_NO_RANK);
    here.needs_state = session_->needs_state() ? 1 : 0;
    return here;
  }

  static uint64_t NowMs() {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(
            std::chrono::steady_clock::now().time_since_epoch())
            .count());
  }

  // It is what the donor said, before the others of its step, to have.
  void CheckTaken(const pt_todo& done) const {
    if (local_->ParameterDigest() == Digest::FromC(done.parameters)) return;
    ThrowError(PT_RESYNC_REQUIRED,
               "Rank " + std::to_string(session_->rank()) +
                   " was given other parameters than rank " +
                   std::to_string(session_->donor().value_or(PT_NO_RANK)) +
                   " says that it has.\nStart this rank again.",
               true);
  }

  void Enter(const pt_todo& done) {
    clock_->Renew(done.progress, session_->next_step());
    local_->Entered();
    if (!pending_.has_value()) pt_membership_forget(core_.get());
  }

  void Tell(const pt_todo& todo) const {
    if (on_event_ && todo.tell != nullptr) on_event_(todo.tell);
  }

  Session* session_;
  LocalState* local_;
  StepClock* clock_;
  Session::OnWaiting on_event_;
  std::unique_ptr<pt_membership, Free> core_;
  std::optional<StateView> pending_;  // To be taken whole.
};

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_MEMBERSHIP_H_
