#include "coordinator/core/journal_record.h"

#include <algorithm>

namespace pactrain::coordinator {
namespace {

void Remember(Recovered::Group& group, const protocol::Decision& decision) {
  group.history.insert(group.history.begin(), decision);
  if (group.history.size() > kMaxHistory) group.history.pop_back();
  group.last_version = std::max(group.last_version, decision.version);
}

struct Applier {
  std::map<protocol::GroupId, Recovered::Group>& groups;
  std::map<std::string, IdentityDenied>& denied;
  std::map<std::string, AgentDrained>& drained;

  void operator()(const GenerationFormed& r) {
    Recovered::Group& group = groups[r.generation.group];
    group.generation = r.generation;
    group.ended = false;
    group.end_reason.clear();
    group.prepared.reset();
    group.detached_ranks.clear();
    // Nobody of the launches before is in a new job.
    if (!r.generation.donor) group.detached_of.clear();
    group.reserved_step =
        std::max(group.reserved_step, r.generation.base_step + kReserveSteps);
    group.away = r.away;
    Remember(group, r.generation.decision);
  }
  void operator()(const LineageEnded& r) {
    std::vector<LineageEnded>& ended = groups[r.group].ended_lineages;
    ended.insert(ended.begin(), r);
    if (ended.size() > kMaxHistory) ended.pop_back();
  }
  void operator()(const GenerationEnded& r) {
    Recovered::Group& group = groups[r.group];
    group.ended = true;
    group.end_reason = r.reason;
    group.prepared.reset();
    // Exact where reports told it, so that no numbers are skipped needlessly.
    group.reserved_step = r.next_step;
  }
  void operator()(const DecisionMade& r) {
    Recovered::Group& group = groups[r.group];
    group.prepared = r.decision;
    Remember(group, r.decision);
  }
  void operator()(const DecisionRevoked& r) {
    groups[r.group].prepared.reset();
  }
  void operator()(const MaskSetStable&) {}
  void operator()(const StepsReserved& r) {
    groups[r.group].reserved_step = r.step;
  }
  void operator()(const TrainersDetached& r) {
    groups[r.group].detached_ranks = r.ranks;
    groups[r.group].detached_of = r.of_launch;
  }
  void operator()(const PinSet& r) { groups[r.group].pin = r.pin; }
  void operator()(const GroupForgotten& r) { groups.erase(r.group); }
  void operator()(const IdentityDenied& r) { denied[r.who] = r; }
  void operator()(const IdentityReadmitted& r) { denied.erase(r.who); }
  void operator()(const AgentDrained& r) { drained[r.agent] = r; }
  void operator()(const AgentUndrained& r) { drained.erase(r.agent); }
};

}  // namespace

void Recovered::Apply(const JournalRecord& record) {
  std::visit(Applier{groups, denied, drained}, record);
}

}  // namespace pactrain::coordinator
