// The trainers attached to an agent: admission, memory limits.
//
// Pure. Thread-compatible.
#ifndef PACTRAIN_AGENT_CORE_TRAINERS_H_
#define PACTRAIN_AGENT_CORE_TRAINERS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "agent/core/events.h"
#include "agent/core/options.h"
#include "agent/core/wire_convert.h"
#include "protocol/control.h"

namespace pactrain::agent {

// After the text of who replaced a rank.
inline constexpr char kReplacedAdvice[] =
    ".\nNothing of this rank's state was taken or changed: save it, or end "
    "this process.";

struct TrainerRecord {
  TrainerId id = 0;
  protocol::GroupId group;
  protocol::Trainer trainer;
  TrainerMemory memory;
  std::string launch;  // With job and model.
  std::string region;
  uint64_t bytes = 0;       // Of the slot, and of the result.
  uint64_t generation = 0;  // 0: waits for one.
  // In its generation; before that, what it asked for.
  uint32_t rank = 0;
  uint32_t nccl_version = 0;  // As wire::Hello has them.
  std::string device;
  std::string gpu;
};

class Trainers {
 public:
  explicit Trainers(const Options& options) : options_(options) {}

  // The record that Add() would make. Errors as AgentState::CheckHello.
  absl::StatusOr<TrainerRecord> Check(const wire::Hello& hello) const;
  void Add(TrainerRecord record);
  void Remove(TrainerId id) { records_.erase(id); }

  TrainerRecord* Find(TrainerId id);
  // Waiting or not; null: none.
  const TrainerRecord* Find(const protocol::GroupId& group,
                            const protocol::Digest& attach_id) const;
  // Of the same trainer, which attaches again before it was seen that it left;
  // null: there is none.
  const TrainerRecord* FindReplaced(const TrainerRecord& record) const;
  std::map<TrainerId, TrainerRecord>& all() { return records_; }
  const std::map<TrainerId, TrainerRecord>& all() const { return records_; }

 private:
  absl::Status CheckLaunch(const TrainerRecord& record) const;
  std::string RegionOf(const TrainerRecord& record) const;
  absl::Status CheckMemory(const TrainerRecord& record) const;

  const Options options_;
  std::map<TrainerId, TrainerRecord> records_;
  uint64_t regions_ = 0;  // That were named so far.
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_TRAINERS_H_
