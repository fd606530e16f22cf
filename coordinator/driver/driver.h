// Runs the core: events in, effects out, with the coordinator's only clock,
// timer and mutex around it.
//
// Rules:
//   - Effects are made durable before any of their messages is handed over;
//     messages leave in the order in which the core made them.
//   - A generation is told with its key, and a place in the journal's history
//     with its proof, derived from the journal's secret; the core knows none of
//     them.
//   - The audit log gets its line with the record that it is about, the others
//     at the next tick: none costs a step a write.
//   - When the journal cannot be written, nothing of those effects is told: the
//     core starts anew from what is durable, read-only, and agents connect
//     again; running generations go on. Writing is tried again every few
//     seconds.
//   - One thread at a time changes anything: it has the turn, and keeps it
//     while it waits for the disk. Who only reads, or notes a refusal, does not
//     wait for that. A reader may so see what is about to be durable.
//
// Thread-safe. Never calls a Stream, listener or log while holding its mutex.
#ifndef PACTRAIN_COORDINATOR_DRIVER_DRIVER_H_
#define PACTRAIN_COORDINATOR_DRIVER_DRIVER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/repeat_filter.h"
#include "coordinator/core/coordinator_state.h"
#include "coordinator/driver/audit_trail.h"
#include "coordinator/driver/caller_budgets.h"
#include "coordinator/driver/witnesses.h"
#include "coordinator/store/journal.h"

namespace pactrain::coordinator {

class Driver {
 public:
  // The way to one agent. Neither method blocks.
  class Stream {
   public:
    virtual ~Stream() = default;
    virtual void Send(const protocol::CoordinatorMessage& message) = 0;
    virtual void Close(const absl::Status& status) = 0;  // Nothing follows it.
  };

  using Clock = std::function<absl::Duration()>;

  // `journal` must outlive the driver. `clock` is monotonic and thread-safe.
  // InvalidArgument: an option is out of range.
  static absl::StatusOr<std::unique_ptr<Driver>> Create(
      const Options& options, Journal* journal,
      Clock clock = base::MonotonicNow);
  ~Driver();  // Stop().

  // Called after every timer tick, ten a second. REQUIRES: before Start().
  void SetTickListener(std::function<void()> listener);
  void Start();  // Starts the timer.
  void Stop();   // Stops the timer; the listener is not called any more.

  // A new stream. ResourceExhausted: too many. Unavailable: draining.
  // `caller` is who the audit log names for what the stream says.
  absl::StatusOr<StreamId> Open(std::shared_ptr<Stream> stream,
                                const protocol::Caller& caller = {});
  void OnMessage(StreamId stream, protocol::AgentMessage message);
  void OnClosed(StreamId stream, const std::string& reason);
  // What the timer does; for tests.
  void Tick();
  // Closes all streams and takes no new ones; agents carry on and look for us
  // again.
  void Drain();

  StateSnapshot Snapshot() const;
  const Options& options() const { return options_; }
  // As CoordinatorState::Forget() and SetPin(); OK: it is durable.
  absl::Status Forget(const std::string& job, const protocol::Caller& caller);
  absl::Status SetPin(const protocol::GroupId& group,
                      const std::optional<Pin>& pin,
                      const protocol::Caller& caller = {});

  // As CoordinatorState::Evict() and Readmit(); OK: it is durable.
  absl::StatusOr<CoordinatorState::Evicted> Evict(
      const std::string& who, const protocol::Caller& caller);
  absl::Status Readmit(const std::string& who, const protocol::Caller& caller);
  // As CoordinatorState::Drain(); the jobs. Its line in the audit log is
  // durable by then.
  absl::StatusOr<std::vector<std::string>> Drain(
      const std::string& agent, bool force, const protocol::Caller& caller);
  absl::Status Undrain(const std::string& agent,
                       const protocol::Caller& caller);
  // As Journal::Backup(), with a line in the audit log that is in the backup,
  // too. One that fails leaves another line, which says why.
  absl::StatusOr<std::string> Backup(const std::string& name,
                                     const protocol::Caller& caller);
  // The rules that Evict() has made, and that are durable.
  std::vector<std::string> EvictedRules();
  // As CoordinatorState::Participants() and Expel().
  std::vector<CoordinatorState::Participant> Participants() const;
  void Expel(const std::string& agent, const std::optional<std::string>& job,
             const std::string& reason, const protocol::Caller& caller);

  // Somebody was refused before the core heard of it: for the audit log.
  void OnRefused(protocol::AuditEvent event);
  // As Journal::ReadAudit(), with all that has happened before the call.
  absl::StatusOr<protocol::AuditPage> ReadAudit(uint64_t after);
  // Agents that keep something of it, by name.
  std::vector<Witness> AuditWitnesses() const;

 private:
  struct OpenStream {
    std::shared_ptr<Stream> stream;
    protocol::Caller caller;
    std::string agent;  // As its hello says; empty: it has said none.
    absl::Duration opened_at;
    bool said_hello = false;
    // Since `window`, for the limits per second.
    absl::Duration window;
    int messages = 0;
    std::map<protocol::GroupId, int> reports;
  };
  // What is to be handed over once the mutex is free.
  struct Outgoing {
    std::shared_ptr<Stream> stream;  // Null: a line for the log.
    std::variant<protocol::CoordinatorMessage, absl::Status, Effects::Event>
        what;
  };

  // The turn, and the mutex.
  class ABSL_SCOPED_LOCKABLE Turn {
   public:
    explicit Turn(Driver& driver)
        ABSL_EXCLUSIVE_LOCK_FUNCTION(driver.turn_, driver.mu_)
        : turn_(&driver.turn_), lock_(&driver.mu_) {}
    ~Turn() ABSL_UNLOCK_FUNCTION() {}

   private:
    base::MutexLock turn_, lock_;
  };

  Driver(const Options& options, Journal* journal, Clock clock,
         CoordinatorState state);

  // Before an operator changes anything.
  // ResourceExhausted: he has changed too much of late.
  absl::Status TakeChange(const protocol::Caller& caller)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What an operator wants; OK: it is durable, with the lines of its records.
  absl::Status Operate(
      const std::function<absl::StatusOr<Effects>(CoordinatorState& state,
                                                  absl::Duration now)>& change,
      const protocol::Caller& caller);
  // OK: the line is durable.
  absl::Status Record(protocol::AuditEvent event);
  void Run(Effects effects, const AuditTrail::Cause& cause = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_, mu_);
  // With the lines of the audit log that wait. The mutex is free meanwhile.
  absl::Status Append(const std::vector<JournalRecord>& records,
                      const AuditTrail::Cause& cause)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_, mu_);
  void WriteAudit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_, mu_);
  // What the message says of the audit log.
  void HearWitness(OpenStream& stream, const protocol::AgentMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_, mu_);
  void WarnOfAudit(const Witnesses::Trouble& trouble,
                   const protocol::Caller& caller)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells agents where the log ends, which decisions alone would not.
  void TellHead(absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_, mu_);
  AuditTrail::Time Now() const { return {clock_(), absl::Now()}; }
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TryHeal(absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_, mu_);
  void Shut(StreamId stream, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ShutMute(absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ShutAll(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // FailedPrecondition: it names a history that is none of this journal's
  // secret.
  absl::Status CheckProof(const protocol::AgentMessage& message) const;
  // Adds what the shell knows; nothing to an empty one.
  void Prove(protocol::HistoryMark& mark) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_, mu_);
  // Counts a message, and the ranks that join with it, before it changes
  // anything. ResourceExhausted: one too many for the stream to go on.
  absl::Status CheckFlood(OpenStream& stream,
                          const protocol::AgentMessage& message,
                          absl::Duration now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_, mu_);
  // Whether it is one of too many reports.
  bool IsReportTooMany(OpenStream& stream,
                       const protocol::AgentMessage& message) const;
  void Warn(std::string text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Hands over what Run() left, unless another thread is doing it.
  void Deliver() ABSL_LOCKS_EXCLUDED(mu_);
  void Loop();

  const Options options_;
  Journal* const journal_;
  const Clock clock_;
  std::function<void()> tick_listener_;
  std::thread timer_;

  const bool audit_changed_;  // Found when the journal was opened.

  base::Mutex turn_;  // Taken before mu_.
  mutable base::Mutex mu_;
  base::CondVar stopping_cv_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  base::RepeatFilter changed_ ABSL_GUARDED_BY(mu_){absl::Minutes(10)};
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  CoordinatorState state_ ABSL_GUARDED_BY(mu_);
  Recovered durable_ ABSL_GUARDED_BY(mu_);  // What a restart would find.
  AuditTrail trail_ ABSL_GUARDED_BY(mu_);
  CallerBudgets budgets_ ABSL_GUARDED_BY(mu_);
  Witnesses witnesses_ ABSL_GUARDED_BY(mu_);
  uint64_t told_head_ ABSL_GUARDED_BY(mu_) = 0;  // The line.
  absl::Duration next_head_ ABSL_GUARDED_BY(mu_);
  bool read_only_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration next_heal_ ABSL_GUARDED_BY(mu_);
  StreamId next_stream_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<StreamId, OpenStream> streams_ ABSL_GUARDED_BY(mu_);
  std::deque<Outgoing> outbox_ ABSL_GUARDED_BY(mu_);
  bool delivering_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_DRIVER_DRIVER_H_
