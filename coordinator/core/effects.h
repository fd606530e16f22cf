// What a step of the coordinator's core wants done.
//
// Rule (log before tell): all `records` are durable before any of `sends`
// leaves. If they cannot be made durable, nothing of these effects may be
// carried out.
#ifndef PACTRAIN_COORDINATOR_CORE_EFFECTS_H_
#define PACTRAIN_COORDINATOR_CORE_EFFECTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/journal_record.h"
#include "protocol/control.h"

namespace pactrain::coordinator {

// One AgentStream; given by the shell, never used twice, never 0.
using StreamId = uint64_t;

struct Effects {
  struct Send {
    StreamId stream = 0;
    protocol::CoordinatorMessage message;
  };
  struct Close {
    StreamId stream = 0;
    absl::Status status;
  };
  struct Event {
    bool warning = false;
    std::string text;  // One sentence for the log.
  };
  // For the audit log: what an agent's report says of somebody.
  struct Alarm {
    protocol::GroupId group;
    std::string agent;
    std::string what;
  };
  // In this order: records, sends, closes.
  std::vector<JournalRecord> records;
  std::vector<Send> sends;
  std::vector<Close> closes;
  std::vector<Event> events;
  std::vector<Alarm> alarms;

  void Log(std::string text) { events.push_back({false, std::move(text)}); }
  void Warn(std::string text) { events.push_back({true, std::move(text)}); }
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_EFFECTS_H_
