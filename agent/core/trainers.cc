#include "agent/core/trainers.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/counted.h"
#include "base/status_macros.h"
#include "base/weakened.h"
#include "protocol/limits.h"

namespace pactrain::agent {

absl::StatusOr<TrainerRecord> Trainers::Check(const wire::Hello& hello) const {
  ASSIGN_OR_RETURN(HelloFields fields, ParseHello(hello));
  if (!fields.site.empty() && fields.site != options_.site) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the trainer says it is in site %s, agent %s is in site %s",
        fields.site, options_.agent, options_.site));
  }
  TrainerRecord record;
  record.group = std::move(fields.group);
  record.trainer = std::move(fields.trainer);
  record.rank = record.trainer.rank;
  record.bytes = (fields.slot_bytes + wire::kSlotAlign - 1) / wire::kSlotAlign *
                 wire::kSlotAlign;
  record.launch = absl::StrCat(record.group.job, "/", record.group.model, "/",
                               record.trainer.launch);
  record.nccl_version = hello.nccl_version;
  record.device = GetText(hello.device);
  record.gpu = GetText(hello.gpu);
  record.region = RegionOf(record);
  RETURN_IF_ERROR(CheckLaunch(record));
  RETURN_IF_ERROR(CheckMemory(record));
  return record;
}

// Trainers of one launch and model that wait here together share a result
// region. A new one for each generation: whoever is not in it may still have to
// read what the last step brought, if it was stopped.
std::string Trainers::RegionOf(const TrainerRecord& record) const {
  if (PT_WEAKENED(OneRegionForAllGenerations)) return record.launch;
  const TrainerRecord* const replaced = FindReplaced(record);
  for (const auto& [id, other] : records_) {
    if (other.launch == record.launch && other.generation == 0 &&
        &other != replaced) {
      return other.region;
    }
  }
  return absl::StrCat(record.launch, "#", regions_);
}

absl::Status Trainers::CheckLaunch(const TrainerRecord& record) const {
  const protocol::Trainer& t = record.trainer;
  const TrainerRecord* const replaced = FindReplaced(record);
  int same = 0;
  for (const auto& [id, other] : records_) {
    if (other.launch != record.launch || &other == replaced) continue;
    ++same;
    const protocol::Trainer& o = other.trainer;
    if (o.rank == t.rank && o.replace && !t.lineage.id.empty()) {
      return absl::AbortedError(absl::StrFormat(
          "the state of this rank (%d of job %s) is over: launch '%s', which "
          "was started again at agent %s, replaced it on purpose, and holds "
          "its rank (`pactrain-admin audit` says when)",
          t.rank, record.group.job, o.launch, options_.agent));
    }
    if (o.rank == t.rank) {
      return absl::FailedPreconditionError(
          absl::StrFormat("rank %d of job %s is attached already at agent %s: "
                          "the same launch runs; end it, or give this one "
                          "another PACTRAIN_JOB_ID",
                          t.rank, record.group.job, options_.agent));
    }
    if (o.world_size != t.world_size) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "world_size: rank %d has %d, rank %d of the same launch has %d",
          t.rank, t.world_size, o.rank, o.world_size));
    }
    if (o.model_digest != t.model_digest || other.bytes != record.bytes) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "model: rank %d has %s (%d slot bytes), rank %d of the same launch "
          "has %s (%d slot bytes)",
          t.rank, t.model_summary, record.bytes, o.rank, o.model_summary,
          other.bytes));
    }
  }
  if (same >= protocol::kMaxTrainersPerAgent) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "job %s has %d trainers on this node; at most %d", record.group.job,
        same, protocol::kMaxTrainersPerAgent));
  }
  return absl::OkStatus();
}

absl::Status Trainers::CheckMemory(const TrainerRecord& record) const {
  const TrainerRecord* const replaced = FindReplaced(record);
  const size_t others = records_.size() - (replaced != nullptr ? 1 : 0);
  if (others >= static_cast<size_t>(options_.max_trainers)) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("agent %s has %s, its limit", options_.agent,
                        base::Counted(others, "trainer")));
  }
  if (options_.max_memory_bytes == 0) return absl::OkStatus();
  uint64_t used = 0;
  std::set<std::string> regions;
  for (const auto& [id, other] : records_) {
    if (&other == replaced) continue;
    used += other.bytes;
    if (regions.insert(other.region).second) used += other.bytes;
  }
  const uint64_t wanted =
      regions.count(record.region) > 0 ? record.bytes : 2 * record.bytes;
  if (used + wanted <= options_.max_memory_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("the trainer wants %d bytes of shared memory; agent %s "
                      "has lent %d of its "
                      "%d",
                      wanted, options_.agent, used, options_.max_memory_bytes));
}

void Trainers::Add(TrainerRecord record) {
  const TrainerId id = record.id;
  ++regions_;
  records_[id] = std::move(record);
}

TrainerRecord* Trainers::Find(TrainerId id) {
  auto it = records_.find(id);
  return it == records_.end() ? nullptr : &it->second;
}

const TrainerRecord* Trainers::Find(const protocol::GroupId& group,
                                    const protocol::Digest& attach_id) const {
  for (const auto& [id, record] : records_) {
    if (record.group == group && record.trainer.attach_id == attach_id) {
      return &record;
    }
  }
  return nullptr;
}

const TrainerRecord* Trainers::FindReplaced(const TrainerRecord& record) const {
  return Find(record.group, record.trainer.last_attach_id);
}

}  // namespace pactrain::agent
