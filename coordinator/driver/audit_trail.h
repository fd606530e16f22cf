// Turns what happens in the coordinator into lines of the audit log.
//
// A line of a journal record is made durable together with it. The other lines
// (agents that connect, refusals) wait for the next tick. Nothing that comes
// with every step makes a line, and the same refusal makes one in ten minutes.
// What one source causes has a budget (line_budget.h), and a bounded number of
// lines waits: what is left out is counted in a line.
//
// Pure: time comes as an argument. Thread-compatible.
#ifndef PACTRAIN_COORDINATOR_DRIVER_AUDIT_TRAIL_H_
#define PACTRAIN_COORDINATOR_DRIVER_AUDIT_TRAIL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "base/repeat_filter.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/journal_record.h"
#include "coordinator/driver/line_budget.h"
#include "protocol/audit.h"
#include "protocol/control.h"

namespace pactrain::coordinator {

class AuditTrail {
 public:
  static constexpr size_t kMaxWaiting = 1024;

  struct Time {
    absl::Duration monotonic;
    absl::Time wall;  // For people only.
  };

  // Who has caused something.
  struct Cause {
    protocol::Caller caller = {"coordinator", ""};  // By itself, as time goes.
    bool operates = false;  // What an operator does is never left out.
  };

  // The lines of records, as far as they are within a budget: that of the
  // job's agent which has most left of it, or else of who caused them.
  // `known`: what was durable before. A kind of record that is to have a line
  // gets an overload in audit_trail.cc.
  std::vector<protocol::AuditEvent> LinesOf(
      const std::vector<JournalRecord>& records, const Cause& cause,
      const Recovered& known, const Time& now);

  // An agent's message was answered so; `known`: what was durable before.
  void OnMessage(StreamId stream, const protocol::Caller& caller,
                 const protocol::AgentMessage& message, const Effects& effects,
                 const Recovered& known, const Time& now);
  void OnStreamClosed(StreamId stream) { agents_.erase(stream); }

  // Somebody who may does this. Each time is a line, which has to be written
  // before he is answered: it is never left out.
  void OnAction(protocol::AuditEvent event, const Time& now);
  // Somebody was refused: who tries again and again makes one line, and who
  // tries ever something else a few, and one that says so.
  void OnRefused(protocol::AuditEvent event, const Time& now);

  // Tells how much was left out of those whose ten minutes are over.
  void OnTick(const Time& now);
  // Whether lines wait.
  bool waits() const { return !waiting_.empty() || left_out_ > 0; }
  // The lines that wait, with one for those that did not fit. They wait no
  // more; REQUIRES: those that could not be written are put back.
  std::vector<protocol::AuditEvent> Take(const Time& now);
  void PutBack(const std::vector<protocol::AuditEvent>& lines);

 private:
  struct Agent {
    std::string name;
    protocol::Caller caller;
  };
  void Add(protocol::AuditEvent event, const Time& now);
  void OnHello(StreamId stream, const protocol::Caller& caller,
               const protocol::AgentHello& hello, const Effects& effects,
               const Time& now);
  void OnLeft(StreamId stream, const protocol::LocalTrainers& local,
              const Recovered& known, const Time& now);
  // Whether so many lines are within the budget of the caller; says so if they
  // are the first that are not.
  bool Takes(const protocol::Caller& caller, const std::string& job,
             uint64_t lines, const Time& now);
  // Of these the one with most left for that job. None: nobody.
  std::optional<protocol::Caller> PayerOf(
      const std::vector<protocol::Member>& members, const std::string& job,
      const std::map<std::string, protocol::Caller>& agents) const;
  std::map<std::string, protocol::Caller> Callers() const;  // By agent.

  std::map<StreamId, Agent> agents_;  // That were welcomed.
  bool named_ = false;  // Callers have names: it is no plain text.
  // Ranks of generations whose end is told once, though agents repeat it.
  std::set<std::tuple<protocol::GroupId, uint64_t, uint32_t>> left_;
  base::RepeatFilter refusals_{absl::Minutes(10)};
  LineBudget budget_;
  std::vector<protocol::AuditEvent> waiting_;
  uint64_t left_out_ = 0;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_DRIVER_AUDIT_TRAIL_H_
