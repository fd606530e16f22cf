// Ranks that come and go: the end of a generation is the beginning of the next
// one, as in the Python client (membership.py).
//
// When a generation ends because its members changed, every rank that lives
// attaches again and says how far it has come. The coordinator forms the next
// generation and names a donor, a rank that has come farthest; ranks that have
// not, and newcomers, take its state. Then training goes on with the step that
// failed.
#ifndef PACTRAIN_TRAINER_CPP_MEMBERSHIP_H_
#define PACTRAIN_TRAINER_CPP_MEMBERSHIP_H_

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/local_state.h"
#include "trainer/cpp/session.h"
#include "trainer/cpp/state_transfer.h"
#include "trainer/cpp/state_value.h"
#include "trainer/cpp/step_clock.h"

namespace pactrain::internal {

// Keeps one model in its job. Used by the thread that trains, while no step is
// open. Borrows all that it is given. `on_event` is told what happens.
class Membership {
 public:
  using Clock = std::chrono::steady_clock;

  Membership(Session* session, LocalState* local, StepClock* clock,
             uint64_t piece_bytes, Session::OnWaiting on_event,
             std::function<Clock::time_point()> now = Clock::now)
      : session_(session),
        local_(local),
        clock_(clock),
        on_event_(std::move(on_event)),
        now_(std::move(now)),
        transfer_(session, local, piece_bytes) {}

  // A rank that joins a running job takes its state from one that has it;
  // together with all.
  // RefusedError: this model, or what it shares, is not the job's.
  // ResyncRequiredError: nobody is left who has the state.
  // REQUIRES: the session has a donor.
  void Join() {
    const Taken taken = Settle({}, std::nullopt, true);
    local_->Take(taken.state.value(), LocalState::Part::kNewcomer);
    Enter(taken.progress);
    Tell("rank " + std::to_string(session_->rank()) +
         " took the state of rank " +
         std::to_string(session_->donor().value()) + " after " +
         std::to_string(taken.progress.committed) + " steps");
  }

  // True if a step failed with this error because the generation is over, and
  // there may be a next one.
  bool MayGoOn(const PacTrainError& error) const {
    const bool ends = dynamic_cast<const StepNotAppliedError*>(&error) ||
                      dynamic_cast<const ResyncRequiredError*>(&error) ||
                      dynamic_cast<const AgentUnresponsiveError*>(&error);
    return ends && session_->config().elastic() && session_->is_final() &&
           session_->may_rejoin();
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
    const uint32_t before = session_->world_size();
    const Progress mine = clock_->ProgressAt(session_->next_step());
    const Digest parameters = local_->ParameterDigest();
    Tell("generation " + std::to_string(session_->generation()) +
         " ended, attaching again: " + text.substr(0, text.find('\n')));
    Taken taken = Settle(mine, MakeReport(mine), false);
    const bool kept = !taken.state.has_value() ||
                      (taken.progress.committed == mine.committed &&
                       taken.parameters == parameters);
    if (taken.state.has_value()) {
      local_->Take(*taken.state, LocalState::Part::kWithoutProgram);
    }
    Enter(taken.progress);
    TellWorld(before, kept);
    if (!kept) pending_ = std::move(taken.state);
    return kept;
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
    const StateValue state = *std::exchange(pending_, std::nullopt);
    local_->Take(state, LocalState::Part::kWhole);
  }

 private:
  static constexpr auto kRetry = std::chrono::milliseconds(200);

  // The state that this rank has, and the step after its last committed one.
  struct Report {
    Digest lineage;
    uint64_t committed = 0;
    uint64_t next_step = 0;
  };
  Report MakeReport(const Progress& mine) const {
    return {session_->lineage(), mine.committed, session_->resume_step()};
  }

  // Attaches again, until all ranks of a generation have one state. Without a
  // report it is attached.
  Taken Settle(const Progress& mine, std::optional<Report> report,
               bool newcomer) {
    Clock::time_point end = End();
    while (true) {
      if (report.has_value()) Reattach(*report, end);
      if (!session_->donor().has_value()) {
        throw ResyncRequiredError(
            "Generation " + std::to_string(session_->generation()) +
            " begins anew: no rank is left that has the job's state.\n"
            "Load the last checkpoint at all ranks and start them again.");
      }
      const bool needs = session_->needs_state();
      const uint64_t entered = session_->resume_step();
      const Clock::time_point began = now_();
      try {
        return transfer_.Run(mine, newcomer);
      } catch (const PacTrainError& error) {
        if (!MayGoOn(error)) throw;
        if (session_->resume_step() != entered) {
          // All have met: waiting for a slow rank is no attaching.
          end += now_() - began;
        } else if (now_() > end) {
          throw StepNotAppliedError(GivenUp(error.what()));
        }
      }
      report = needs ? Report{} : MakeReport(mine);
    }
  }

  std::string GivenUp(const std::string& text) const {
    return text.substr(0, text.find('\n')) + "\nNo step was committed for " +
           std::to_string(
               std::lround(session_->config().attach_timeout_seconds)) +
           " s (PACTRAIN_ATTACH_TIMEOUT), so this rank gives up. Look with "
           "`pactrain doctor` on each node whether the agents reach each "
           "other.";
  }

  // When to give up: the time for attaching, without a committed step.
  Clock::time_point End() {
    if (failed_after_ != clock_->committed()) {
      failed_after_ = clock_->committed();
      failed_since_ = now_();
    }
    return failed_since_ +
           std::chrono::milliseconds(static_cast<int64_t>(
               session_->config().attach_timeout_seconds * 1000));
  }

  void Reattach(const Report& report, Clock::time_point end) {
    for (bool told = false;; told = true) {
      const auto left = std::max<std::chrono::milliseconds>(
          std::chrono::seconds(1),
          std::chrono::duration_cast<std::chrono::milliseconds>(end - now_()));
      try {
        return session_->Reattach(report.lineage, report.committed,
                                  report.next_step, left);
      } catch (const PacTrainError& error) {
        if (!Session::last_attach_may_rejoin() || now_() > end) throw;
        if (!told) Tell(std::string("trying again: ") + error.what());
      }
      std::this_thread::sleep_for(kRetry);
    }
  }

  void Enter(const Progress& progress) {
    clock_->Renew(progress, session_->next_step());
    local_->Entered();
  }

  void TellWorld(uint32_t before, bool kept) const {
    const uint32_t now = session_->world_size();
    std::string text = "generation " + std::to_string(session_->generation()) +
                       ": " + std::to_string(now);
    if (now < before) text += " of " + std::to_string(before);
    text += " ranks";
    if (now > before) text += " instead of " + std::to_string(before);
    text += " go on after " + std::to_string(clock_->committed()) + " steps";
    if (!kept) {
      text += "; this rank took the state of rank " +
              std::to_string(session_->donor().value());
    }
    Tell(text);
  }

  void Tell(const std::string& text) const {
    if (on_event_) on_event_(text);
  }

  Session* session_;
  LocalState* local_;
  StepClock* clock_;
  Session::OnWaiting on_event_;
  std::function<Clock::time_point()> now_;
  StateTransfer transfer_;
  std::optional<StateValue> pending_;     // To be taken whole.
  uint64_t failed_after_ = ~uint64_t{0};  // Committed steps.
  Clock::time_point failed_since_ = {};
};

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_MEMBERSHIP_H_
