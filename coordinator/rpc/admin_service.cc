#include "coordinator/rpc/admin_service.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "coordinator/core/planner.h"
#include "coordinator/driver/audit_trail.h"
#include "coordinator/rpc/agent_stream.h"
#include "coordinator/rpc/job_watch.h"
#include "protocol/proto_convert.h"

namespace pactrain::coordinator {
namespace {

constexpr char kShuttingDown[] = "the coordinator is shutting down";

std::optional<GroupSnapshot> Find(const Driver& driver,
                                  const protocol::GroupId& id) {
  for (GroupSnapshot& group : driver.Snapshot().groups) {
    if (group.group == id) return std::move(group);
  }
  return std::nullopt;
}

absl::StatusOr<std::string> JobOf(const absl::StatusOr<protocol::GroupId>& id) {
  if (!id.ok()) return id.status();
  return id->job;
}

grpc::Status NotFound(const protocol::GroupId& id) {
  return {
      grpc::StatusCode::NOT_FOUND,
      absl::StrCat("no job '", id.ToString(),
                   "' is known; ListJobs (pactrain-admin jobs) names them")};
}

absl::StatusOr<Pin> ReadPin(const v1::Pin& proto) {
  if (proto.mode() < v1::MODE_FULL || proto.mode() > v1::MODE_TERNARY) {
    return absl::InvalidArgumentError(
        absl::StrCat("pin.mode is ", proto.mode(),
                     "; allowed are 1 (FULL), 2 (COMPACTED), 3 (TERNARY)"));
  }
  if (proto.codec() < v1::CODEC_FP32 || proto.codec() > v1::CODEC_LEVELS31) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pin.codec is ", proto.codec(),
        "; allowed are 1 (fp32), 2 (bf16), 3 to 7 (3, 5, 7, 15, 31 levels)"));
  }
  return Pin{static_cast<protocol::Mode>(proto.mode()),
             static_cast<protocol::Codec>(proto.codec())};
}

// Agents that have to do with one of these groups, or can with `job` alone.
std::set<std::string> AgentsOf(const StateSnapshot& s, const std::string& job) {
  std::set<std::string> names;
  for (const GroupSnapshot& group : s.groups) {
    if (!group.generation) continue;
    for (const protocol::Member& member : group.generation->members) {
      names.insert(member.agent);
    }
  }
  for (const AgentSnapshot& agent : s.agents) {
    if (protocol::AgentNameOf(agent.agent, job) == agent.agent) {
      names.insert(agent.agent);
    }
  }
  return names;
}

// Of a state that has the groups only that the caller sees. Nodes are the
// cluster's: who is bound to one job alone (`job`) does not see the others'.
void FillAgents(const StateSnapshot& s, const std::string& job,
                v1::ListAgentsResponse& proto) {
  proto.set_term(s.term);
  proto.set_cluster_id(s.cluster_id);
  const std::set<std::string> shown = AgentsOf(s, job);
  for (const AgentSnapshot& agent : s.agents) {
    if (!shown.contains(agent.agent)) continue;
    v1::AgentState& state = *proto.add_agents();
    state.set_agent(agent.agent);
    state.set_site(agent.site);
    state.set_data_address(agent.data_address);
    state.set_version(agent.version);
    state.set_connected(agent.connected);
    state.set_drained(agent.drained);
  }
  for (const GroupSnapshot& group : s.groups) {
    if (group.phase != GroupPhase::kRunning) continue;
    const std::vector<std::string>& sites = group.generation->sites;
    for (const LinkSnapshot& link : group.links) {
      // An agent does not forget whom it once had to do with.
      if (std::find(sites.begin(), sites.end(), link.peer_site) ==
          sites.end()) {
        continue;
      }
      v1::LinkState& state = *proto.add_links();
      state.set_agent(link.agent);
      state.set_site(link.site);
      state.set_peer_site(link.peer_site);
      state.set_goodput_bytes_per_second(link.goodput_bytes_per_second);
      state.set_rtt_seconds(link.rtt_seconds);
    }
  }
}

Action ActionOf(Right right) {
  return right == Right::kOperate ? Action::kChange : Action::kSee;
}

v1::AuditWitness ToProto(const Witness& witness) {
  v1::AuditWitness proto;
  proto.set_agent(witness.agent);
  proto.set_connected(witness.connected);
  for (const protocol::AuditHead& head : witness.heads) {
    v1::AuditHead& out = *proto.add_heads();
    out = protocol::ToProto(head);
    out.clear_proof();
  }
  return proto;
}

}  // namespace

v1::JobState ToProto(const GroupSnapshot& s) {
  v1::JobState proto;
  *proto.mutable_group() = protocol::ToProto(s.group);
  proto.set_state(std::string(GroupPhaseName(s.phase)));
  proto.set_reason(s.reason);
  if (s.generation) {
    *proto.mutable_generation() = protocol::ToProto(*s.generation);
    proto.set_plan(PlanText(s.generation->sites, s.generation->plan));
  }
  if (s.in_force) *proto.mutable_decision() = protocol::ToProto(*s.in_force);
  if (s.prepared) *proto.mutable_prepared() = protocol::ToProto(*s.prepared);
  for (const protocol::Decision& decision : s.history) {
    *proto.add_history() = protocol::ToProto(decision);
  }
  proto.set_committed_step(s.committed_step);
  proto.set_committed_count(s.committed_count);
  proto.set_failed_attempts(s.failed_attempts);
  if (s.elements > 0) {
    proto.set_keep(static_cast<double>(s.kept_elements) /
                   static_cast<double>(s.elements));
  }
  if (s.masks) {
    v1::MaskProgress& masks = *proto.mutable_masks();
    masks.set_rank(s.masks->rank);
    masks.set_steps_unchanged(s.masks->steps_unchanged);
    masks.set_settle_steps(s.masks->settle_steps);
    if (s.masks->changed_step) masks.set_changed_step(*s.masks->changed_step);
    masks.set_moved(s.masks->moved);
  }
  if (s.first_compacted_step) {
    proto.set_first_compacted_step(*s.first_compacted_step);
  }
  for (const NodePath& node : s.node_paths) {
    v1::NodePath& path = *proto.add_node_paths();
    path.set_agent(node.agent);
    *path.mutable_path() = protocol::ToProto(node.path);
  }
  v1::JobAccount& account = *proto.mutable_account();
  account.set_since_unix_seconds(
      absl::ToDoubleSeconds(s.counted_since - absl::UnixEpoch()));
  account.set_dense_bytes(s.account.dense_bytes);
  account.set_kept_bytes(s.account.kept_bytes);
  account.set_sent_bytes(s.account.sent_bytes);
  // Generations before this one may have saved, too.
  if (s.account.saved_by != SavedBy::kNothing || s.account.saved_seconds != 0) {
    account.set_saved_seconds(s.account.saved_seconds);
    account.set_saved_at_least(s.account.saved_by != SavedBy::kFull);
  }
  proto.set_step_seconds(s.step_seconds);
  if (s.exchange_share) proto.set_exchange_share(*s.exchange_share);
  if (s.risk) proto.set_risk(*s.risk);
  if (s.risk_clip) proto.set_risk_clip(*s.risk_clip);
  if (s.pin) {
    proto.mutable_pin()->set_mode(static_cast<v1::Mode>(s.pin->mode));
    proto.mutable_pin()->set_codec(static_cast<v1::Codec>(s.pin->codec));
  }
  return proto;
}

v1::ReadAuditResponse ToProto(const protocol::AuditPage& page) {
  v1::ReadAuditResponse proto;
  proto.set_newest(page.newest);
  proto.set_before_hash(page.before);
  for (const protocol::AuditLine& line : page.lines) {
    v1::AuditLine* const out = proto.add_lines();
    out->set_number(line.number);
    out->set_at(line.event.at);
    out->set_kind(line.event.kind);
    out->set_who(line.event.caller.who);
    out->set_serial(line.event.caller.serial);
    out->set_job(line.event.job);
    out->set_what(line.event.what);
    out->set_why(line.event.why);
    out->set_hash(line.hash);
  }
  return proto;
}

grpc::ServerUnaryReactor* AdminService::ListJobs(
    grpc::CallbackServerContext* context, const v1::ListJobsRequest*,
    v1::ListJobsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto peer = access_->Admit(*context, Right::kRead, "ListJobs");
  if (!peer.ok()) {
    reactor->Finish(ToGrpc(peer.status()));
    return reactor;
  }
  const StateSnapshot snapshot = SeenBy(*peer);
  response->set_term(snapshot.term);
  response->set_cluster_id(snapshot.cluster_id);
  for (const GroupSnapshot& group : snapshot.groups) {
    *response->add_jobs() = ToProto(group);
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::ListAgents(
    grpc::CallbackServerContext* context, const v1::ListAgentsRequest*,
    v1::ListAgentsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto peer = access_->Admit(*context, Right::kRead, "ListAgents");
  if (peer.ok()) {
    FillAgents(SeenBy(*peer), *peer ? (*peer)->job : "", *response);
    const auto& rates = driver_->options().site_rates;
    response->mutable_site_rates()->insert(rates.begin(), rates.end());
    response->set_version(base::kVersion);
    response->set_unix_seconds(
        absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  }
  reactor->Finish(ToGrpc(peer.status()));
  return reactor;
}

StateSnapshot AdminService::SeenBy(const Peer& peer) const {
  StateSnapshot snapshot = driver_->Snapshot();
  std::erase_if(snapshot.groups, [&](const GroupSnapshot& group) {
    return !access_->Sees(peer, group.group.job);
  });
  return snapshot;
}

absl::StatusOr<Peer> AdminService::AdmitJob(
    const grpc::CallbackServerContext& context, Right right,
    const absl::StatusOr<std::string>& job, absl::string_view call) {
  ASSIGN_OR_RETURN(Peer peer, access_->Admit(context, right, call));
  RETURN_IF_ERROR(job.status());
  RETURN_IF_ERROR(
      access_->AdmitJob(context, peer, ActionOf(right), *job, call));
  return peer;
}

absl::Status AdminService::AdmitAllJobs(
    const grpc::CallbackServerContext& context, Right right,
    absl::string_view call) {
  ASSIGN_OR_RETURN(const Peer peer, access_->Admit(context, right, call));
  return access_->AdmitAll(context, peer, ActionOf(right), call);
}

grpc::ServerUnaryReactor* AdminService::GetJob(
    grpc::CallbackServerContext* context, const v1::GetJobRequest* request,
    v1::GetJobResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto id = protocol::FromProto(request->group());
  const absl::Status admitted =
      AdmitJob(*context, Right::kRead, JobOf(id), "GetJob").status();
  if (!admitted.ok()) {
    reactor->Finish(ToGrpc(admitted));
  } else if (auto group = Find(*driver_, *id)) {
    *response->mutable_job() = ToProto(*group);
    if (group->keep_by_parameter) {
      *response->mutable_job()->mutable_keep_by_parameter() =
          protocol::ToProto(*group->keep_by_parameter);
    }
    reactor->Finish(grpc::Status::OK);
  } else {
    reactor->Finish(NotFound(*id));
  }
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::SetPin(
    grpc::CallbackServerContext* context, const v1::SetPinRequest* request,
    v1::SetPinResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto id = protocol::FromProto(request->group());
  absl::Status status =
      AdmitJob(*context, Right::kOperate, JobOf(id), "SetPin").status();
  std::optional<Pin> pin;
  if (status.ok() && request->has_pin()) {
    auto read = ReadPin(request->pin());
    status = read.status();
    if (read.ok()) pin = *read;
  }
  if (status.ok())
    status = driver_->SetPin(*id, pin, access_->CallerOf(*context));
  if (status.ok()) {
    if (auto group = Find(*driver_, *id)) {
      *response->mutable_job() = ToProto(*group);
    }
  }
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::ForgetJob(
    grpc::CallbackServerContext* context, const v1::ForgetJobRequest* request,
    v1::ForgetJobResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status named = protocol::CheckName("job", request->job());
  absl::Status status =
      AdmitJob(*context, Right::kOperate,
               named.ok() ? absl::StatusOr<std::string>(request->job()) : named,
               "ForgetJob")
          .status();
  if (status.ok()) {
    status = driver_->Forget(request->job(), access_->CallerOf(*context));
  }
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::ReadAudit(
    grpc::CallbackServerContext* context, const v1::ReadAuditRequest* request,
    v1::ReadAuditResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  // Its chain can be checked as a whole only.
  absl::Status status = AdmitAllJobs(*context, Right::kRead, "ReadAudit");
  if (status.ok()) {
    // Before the lines, which are newer then.
    std::vector<Witness> witnesses;
    if (request->witnesses()) witnesses = driver_->AuditWitnesses();
    const auto page = driver_->ReadAudit(request->after());
    status = page.status();
    if (page.ok()) *response = ToProto(*page);
    for (const Witness& witness : witnesses) {
      *response->add_witnesses() = ToProto(witness);
    }
  }
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* AdminService::WatchJob(
    grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) {
  const auto id = protocol::FromProto(request->group());
  const auto peer = AdmitJob(*context, Right::kRead, JobOf(id), "WatchJob");
  auto watch = JobWatch::Make(this, peer.ok() ? *peer : Peer(),
                              SourceOf(access_->CallerOf(*context)),
                              id.ok() ? *id : protocol::GroupId{});
  std::optional<GroupSnapshot> group;
  if (!peer.ok()) {
    watch->End(ToGrpc(peer.status()));
  } else if (group = Find(*driver_, *id); !group) {
    watch->End(NotFound(*id));
  } else {
    absl::Status room;
    {
      base::MutexLock lock(&mu_);
      room = draining_ ? absl::UnavailableError(kShuttingDown)
                       : CheckRoom(watches_, watch->who());
      if (room.ok()) watches_.insert(watch);
    }
    if (absl::IsResourceExhausted(room)) {
      access_->Refuse(*context, "WatchJob", room, id->job).IgnoreError();
    }
    if (room.ok()) {
      watch->Offer(ToProto(*group));
    } else {
      watch->End(ToGrpc(room));
    }
  }
  return watch.get();
}

void AdminService::Tick() {
  std::vector<std::shared_ptr<JobWatch>> watches;
  {
    base::MutexLock lock(&mu_);
    watches.assign(watches_.begin(), watches_.end());
  }
  if (watches.empty()) return;
  const StateSnapshot snapshot = driver_->Snapshot();
  for (const auto& watch : watches) {
    if (!access_->Sees(watch->peer(), watch->group().job)) {
      watch->End({grpc::StatusCode::PERMISSION_DENIED,
                  absl::StrCat("the coordinator's policy does not let you see "
                               "job '",
                               watch->group().job, "' any more")});
      continue;
    }
    const auto group = std::find_if(
        snapshot.groups.begin(), snapshot.groups.end(),
        [&](const GroupSnapshot& g) { return g.group == watch->group(); });
    if (group == snapshot.groups.end()) {
      watch->End(NotFound(watch->group()));
    } else {
      watch->Offer(ToProto(*group));
    }
  }
}

void AdminService::EndWatches() {
  std::set<std::shared_ptr<JobWatch>> watches;
  {
    base::MutexLock lock(&mu_);
    draining_ = true;
    watches = watches_;
  }
  for (const auto& watch : watches) {
    watch->End({grpc::StatusCode::UNAVAILABLE, kShuttingDown});
  }
}

void AdminService::Forget(const std::shared_ptr<JobWatch>& watch) {
  base::MutexLock lock(&mu_);
  watches_.erase(watch);
}

}  // namespace pactrain::coordinator
