// What agents say: control.h <-> agent.proto.
#include "base/hex.h"
#include "base/net.h"
#include "base/status_macros.h"
#include "protocol/limits.h"
#include "protocol/proto_check.h"
#include "protocol/proto_convert.h"

namespace pactrain::protocol {
namespace {

struct Writer {
  v1::AgentMessage& out;

  void operator()(const LocalTrainers& m) {
    if (m.revision == 0) {  // One element.
      for (const TrainerJoined& joined : m.here) return (*this)(joined);
      for (const TrainerLeft& left : m.left) return (*this)(left);
      for (const MaskVote& vote : m.votes) return (*this)(vote);
    }
    v1::LocalTrainers p;
    *p.mutable_group() = ToProto(m.group);
    p.set_revision(m.revision);
    for (const TrainerJoined& joined : m.here) {
      (*this)(joined);
      out.mutable_trainer_joined()->clear_group();
      p.add_here()->Swap(out.mutable_trainer_joined());
    }
    for (const TrainerLeft& left : m.left) {
      (*this)(left);
      out.mutable_trainer_left()->clear_group();
      p.add_left()->Swap(out.mutable_trainer_left());
    }
    for (const MaskVote& vote : m.votes) {
      (*this)(vote);
      out.mutable_mask_vote()->clear_group();
      p.add_votes()->Swap(out.mutable_mask_vote());
    }
    if (m.report) {
      (*this)(*m.report);
      out.mutable_step_report()->clear_group();
      p.mutable_report()->Swap(out.mutable_step_report());
    }
    out.mutable_local_trainers()->Swap(&p);
  }

  void operator()(const AgentHello& m) {
    v1::Hello& p = *out.mutable_hello();
    p.set_agent(m.agent);
    p.set_incarnation(WriteDigest(m.incarnation));
    p.set_site(m.site);
    p.set_data_address(m.data_address);
    p.set_version(WriteText(m.version, kMaxNameLength));
    p.set_cluster_id(m.cluster_id);
    p.set_metrics_address(m.metrics_address);
    if (!m.history.empty()) *p.mutable_history() = ToProto(m.history);
    for (const AuditHead& head : m.audit) *p.add_audit() = ToProto(head);
    p.set_proves(m.proves);
  }
  void operator()(const Heartbeat& m) {
    v1::Heartbeat& p = *out.mutable_heartbeat();
    if (!m.audit.empty()) *p.mutable_audit() = ToProto(m.audit);
  }
  void operator()(const TrainerJoined& m) {
    v1::TrainerJoined& p = *out.mutable_trainer_joined();
    *p.mutable_group() = ToProto(m.group);
    p.set_generation(m.generation);
    v1::Trainer& t = *p.mutable_trainer();
    t.set_rank(m.trainer.rank);
    t.set_world_size(m.trainer.world_size);
    t.set_attach_id(WriteDigest(m.trainer.attach_id));
    t.set_launch(WriteText(m.trainer.launch, kMaxNameLength));
    t.set_model_digest(WriteDigest(m.trainer.model_digest));
    t.set_model_summary(WriteText(m.trainer.model_summary, kMaxSummaryLength));
    t.set_elements(m.trainer.elements);
    t.set_resume_step(m.trainer.resume_step);
    t.set_on_shrink(static_cast<v1::OnShrink>(m.trainer.on_shrink));
    *t.mutable_lineage() = ToProto(m.trainer.lineage);
    t.set_parameters(WriteDigest(m.trainer.parameters));
    t.set_replace(m.trainer.replace);
    t.set_last_attach_id(WriteDigest(m.trainer.last_attach_id));
    t.set_last_generation(m.trainer.last_generation);
    if (const base::Secret& proof = m.trainer.proof; !proof.empty()) {
      t.set_proof(proof.bytes.data(), proof.bytes.size());
    }
    if (const Declared& d = m.trainer.declared; d.elements != 0) {
      v1::Declared& out_declared = *t.mutable_declared();
      out_declared.set_layout_digest(WriteDigest(d.layout_digest));
      out_declared.set_mask_digest(WriteDigest(d.mask_digest));
      out_declared.set_kept_elements(d.kept_elements);
      out_declared.set_elements(d.elements);
    }
    *t.mutable_onset() = ToProto(m.trainer.onset);
  }
  void operator()(const TrainerLeft& m) {
    v1::TrainerLeft& p = *out.mutable_trainer_left();
    *p.mutable_group() = ToProto(m.group);
    p.set_rank(m.rank);
    p.set_attach_id(WriteDigest(m.attach_id));
    p.set_reason(WriteText(m.reason, kMaxTextLength));
    p.set_generation_ended(m.generation_ended);
    p.set_may_return(m.may_return);
    p.set_straggled(m.straggled);
    for (const std::string& agent : m.unreached) {
      p.add_unreached(WriteText(agent, kMaxNameLength));
    }
  }
  void operator()(const MaskVote& m) {
    v1::MaskVote& p = *out.mutable_mask_vote();
    *p.mutable_group() = ToProto(m.group);
    p.set_generation(m.generation);
    p.set_rank(m.rank);
    p.set_layout_digest(WriteDigest(m.layout_digest));
    p.set_mask_digest(WriteDigest(m.mask_digest));
    p.set_steps_unchanged(m.steps_unchanged);
    p.set_settle_steps(m.settle_steps);
    p.set_inside_decision(m.inside_decision);
    p.set_kept_elements(m.kept_elements);
    p.set_elements(m.elements);
    p.set_moved(WriteText(m.moved, kMaxMoved));
    if (m.changed_step) p.set_changed_step(*m.changed_step);
    p.set_after_steps(m.after_steps);
  }
  void operator()(const PrepareAnswer& m) {
    v1::PrepareAnswer& p = *out.mutable_prepare_answer();
    *p.mutable_group() = ToProto(m.group);
    p.set_generation(m.generation);
    p.set_version(m.version);
    p.set_accepted(m.accepted);
    p.set_reason(WriteText(m.reason, kMaxTextLength));
  }
  void operator()(const StepReport& m) {
    v1::StepReport& p = *out.mutable_step_report();
    *p.mutable_group() = ToProto(m.group);
    p.set_generation(m.generation);
    p.set_committed_step(m.committed_step);
    p.set_committed_count(m.committed_count);
    p.set_decision_version(m.decision_version);
    p.set_failed_attempts(m.failed_attempts);
    p.set_sent_bytes(m.sent_bytes);
    p.set_sent_kept_bytes(m.sent_kept_bytes);
    p.set_sent_dense_bytes(m.sent_dense_bytes);
    p.set_waits_for(WriteText(m.waits_for, kMaxMoved));
    p.set_step_seconds(m.step_seconds);
    p.set_wait_seconds(m.wait_seconds);
    p.set_interval_seconds(m.interval_seconds);
    if (m.first_compacted_step) {
      p.set_first_compacted_step(*m.first_compacted_step);
    }
    for (size_t cause = 0; cause < kCauses; ++cause) {
      if (m.failed_by_cause[cause] == 0) continue;
      v1::FailedAttempts& f = *p.add_failed_by_cause();
      f.set_cause(static_cast<uint32_t>(cause));
      f.set_count(m.failed_by_cause[cause]);
    }
    if (m.keep_by_parameter) {
      *p.mutable_keep_by_parameter() = ToProto(*m.keep_by_parameter);
    }
    if (m.device_path) *p.mutable_device_path() = ToProto(*m.device_path);
    for (const StepReport::Noise& noise : m.noise) {
      v1::StepReport::Noise& n = *p.add_noise();
      n.set_step(noise.step);
      n.set_decision_version(noise.decision_version);
      n.set_local(noise.local);
      n.set_site(noise.site);
      n.set_encoded(noise.encoded);
      n.set_error(noise.error);
      n.set_clip(noise.clip);
      n.set_total(noise.total);
    }
    for (const StepReport::Link& link : m.links) {
      v1::StepReport::Link& l = *p.add_links();
      l.set_peer_site(link.peer_site);
      l.set_sent_bytes(link.sent_bytes);
      l.set_received_bytes(link.received_bytes);
      l.set_goodput_bytes_per_second(link.goodput_bytes_per_second);
      l.set_rtt_seconds(link.rtt_seconds);
    }
  }
};

absl::StatusOr<AgentMessage> Read(const v1::Hello& p) {
  RETURN_IF_ERROR(CheckName("hello.agent", p.agent()));
  RETURN_IF_ERROR(CheckName("hello.site", p.site()));
  RETURN_IF_ERROR(
      CheckLength("hello.data_address", p.data_address(), kMaxAddressLength));
  if (p.data_address() != kNobodyDials) {
    RETURN_IF_ERROR(base::ParseHostPort(p.data_address()).status());
  }
  RETURN_IF_ERROR(CheckLength("hello.metrics_address", p.metrics_address(),
                              kMaxAddressLength));
  if (!p.metrics_address().empty()) {
    RETURN_IF_ERROR(base::ParseHostPort(p.metrics_address()).status());
  }
  RETURN_IF_ERROR(CheckLength("hello.version", p.version(), kMaxNameLength));
  if (!p.cluster_id().empty() && !base::ParseDigest(p.cluster_id())) {
    return absl::InvalidArgumentError(
        "hello.cluster_id is not 32 hex digits (and not empty)");
  }
  AgentHello m;
  m.agent = p.agent();
  ASSIGN_OR_RETURN(m.incarnation,
                   ReadDigest("hello.incarnation", p.incarnation(), true));
  m.site = p.site();
  m.data_address = p.data_address();
  m.version = p.version();
  m.cluster_id = p.cluster_id();
  m.metrics_address = p.metrics_address();
  if (p.has_history()) {
    ASSIGN_OR_RETURN(m.history, FromProto(p.history()));
  }
  RETURN_IF_ERROR(
      CheckRange("hello.audit's heads", p.audit_size(), 0, kMaxAuditHeads));
  for (const v1::AuditHead& head : p.audit()) {
    ASSIGN_OR_RETURN(m.audit.emplace_back(), FromProto(head));
  }
  m.proves = p.proves();
  return m;
}

absl::StatusOr<AgentMessage> Read(const v1::Heartbeat& p) {
  Heartbeat m;
  if (p.has_audit()) {
    ASSIGN_OR_RETURN(m.audit, FromProto(p.audit()));
  }
  return m;
}

absl::StatusOr<Declared> ReadDeclared(const v1::Declared& p) {
  Declared d;
  RETURN_IF_ERROR(
      CheckRange("declared.elements", p.elements(), 1, kMaxElements));
  RETURN_IF_ERROR(
      CheckRange("declared.kept_elements", p.kept_elements(), 0, p.elements()));
  ASSIGN_OR_RETURN(d.mask_digest,
                   ReadDigest("declared.mask_digest", p.mask_digest(), false));
  ASSIGN_OR_RETURN(d.layout_digest,
                   ReadDigest("declared.layout_digest", p.layout_digest(),
                              !d.mask_digest.empty()));
  d.kept_elements = p.kept_elements();
  d.elements = p.elements();
  return d;
}

absl::StatusOr<TrainerJoined> Read(const v1::TrainerJoined& p,
                                   const v1::Group& group) {
  TrainerJoined m;
  ASSIGN_OR_RETURN(m.group, FromProto(group));
  m.generation = p.generation();
  const v1::Trainer& t = p.trainer();
  RETURN_IF_ERROR(
      CheckRange("trainer.world_size", t.world_size(), 1, kMaxRanks));
  RETURN_IF_ERROR(CheckRange("trainer.rank", t.rank(), 0, t.world_size() - 1));
  RETURN_IF_ERROR(CheckLength("trainer.launch", t.launch(), kMaxNameLength));
  RETURN_IF_ERROR(CheckLength("trainer.model_summary", t.model_summary(),
                              kMaxSummaryLength));
  RETURN_IF_ERROR(
      CheckRange("trainer.elements", t.elements(), 1, kMaxElements));
  RETURN_IF_ERROR(CheckStep("trainer.resume_step", t.resume_step()));
  m.trainer.rank = t.rank();
  m.trainer.world_size = t.world_size();
  ASSIGN_OR_RETURN(m.trainer.attach_id,
                   ReadDigest("trainer.attach_id", t.attach_id(), true));
  m.trainer.launch = t.launch();
  ASSIGN_OR_RETURN(m.trainer.model_digest,
                   ReadDigest("trainer.model_digest", t.model_digest(), true));
  m.trainer.model_summary = t.model_summary();
  m.trainer.elements = t.elements();
  m.trainer.resume_step = t.resume_step();
  ASSIGN_OR_RETURN(m.trainer.on_shrink,
                   ReadOnShrink("trainer.on_shrink", t.on_shrink()));
  ASSIGN_OR_RETURN(m.trainer.lineage,
                   ReadLineage("trainer.lineage", t.lineage(), false));
  ASSIGN_OR_RETURN(m.trainer.parameters,
                   ReadDigest("trainer.parameters", t.parameters(), false));
  m.trainer.replace = t.replace();
  m.trainer.last_generation = t.last_generation();
  ASSIGN_OR_RETURN(
      m.trainer.last_attach_id,
      ReadDigest("trainer.last_attach_id", t.last_attach_id(), false));
  if (!t.proof().empty()) {
    ASSIGN_OR_RETURN(m.trainer.proof, ReadSecret("trainer.proof", t.proof()));
  }
  if (t.has_declared()) {
    ASSIGN_OR_RETURN(m.trainer.declared, ReadDeclared(t.declared()));
  }
  ASSIGN_OR_RETURN(m.trainer.onset, FromProto(t.onset()));
  return m;
}

absl::StatusOr<TrainerLeft> Read(const v1::TrainerLeft& p,
                                 const v1::Group& group) {
  TrainerLeft m;
  ASSIGN_OR_RETURN(m.group, FromProto(group));
  RETURN_IF_ERROR(CheckRange("trainer_left.rank", p.rank(), 0, kMaxRanks - 1));
  RETURN_IF_ERROR(
      CheckLength("trainer_left.reason", p.reason(), kMaxTextLength));
  m.rank = p.rank();
  ASSIGN_OR_RETURN(m.attach_id,
                   ReadDigest("trainer_left.attach_id", p.attach_id(), true));
  m.reason = p.reason();
  m.generation_ended = p.generation_ended();
  m.may_return = p.may_return();
  m.straggled = p.straggled();
  RETURN_IF_ERROR(CheckRange("trainer_left.unreached",
                             static_cast<uint64_t>(p.unreached_size()), 0,
                             kMaxAgents));
  for (const std::string& agent : p.unreached()) {
    RETURN_IF_ERROR(
        CheckLength("trainer_left.unreached", agent, kMaxNameLength));
    m.unreached.push_back(agent);
  }
  return m;
}

absl::StatusOr<MaskVote> Read(const v1::MaskVote& p, const v1::Group& group) {
  MaskVote m;
  ASSIGN_OR_RETURN(m.group, FromProto(group));
  RETURN_IF_ERROR(CheckRange("mask_vote.rank", p.rank(), 0, kMaxRanks - 1));
  RETURN_IF_ERROR(
      CheckRange("mask_vote.settle_steps", p.settle_steps(), 1, ~uint32_t{0}));
  RETURN_IF_ERROR(
      CheckRange("mask_vote.elements", p.elements(), 0, kMaxElements));
  RETURN_IF_ERROR(CheckRange("mask_vote.kept_elements", p.kept_elements(), 0,
                             p.elements()));
  RETURN_IF_ERROR(CheckMoved("mask_vote.moved", p.moved()));
  RETURN_IF_ERROR(CheckStep("mask_vote.changed_step", p.changed_step()));
  RETURN_IF_ERROR(CheckStep("mask_vote.after_steps", p.after_steps()));
  m.generation = p.generation();
  m.rank = p.rank();
  ASSIGN_OR_RETURN(m.mask_digest,
                   ReadDigest("mask_vote.mask_digest", p.mask_digest(), false));
  ASSIGN_OR_RETURN(m.layout_digest,
                   ReadDigest("mask_vote.layout_digest", p.layout_digest(),
                              !m.mask_digest.empty()));
  m.steps_unchanged = p.steps_unchanged();
  m.settle_steps = p.settle_steps();
  m.inside_decision = p.inside_decision();
  m.kept_elements = p.kept_elements();
  m.elements = p.elements();
  m.moved = p.moved();
  if (p.has_changed_step()) m.changed_step = p.changed_step();
  m.after_steps = p.after_steps();
  return m;
}

absl::StatusOr<AgentMessage> Read(const v1::PrepareAnswer& p) {
  PrepareAnswer m;
  ASSIGN_OR_RETURN(m.group, FromProto(p.group()));
  RETURN_IF_ERROR(
      CheckLength("prepare_answer.reason", p.reason(), kMaxTextLength));
  m.generation = p.generation();
  m.version = p.version();
  m.accepted = p.accepted();
  m.reason = p.reason();
  return m;
}

absl::StatusOr<StepReport::Link> Read(const v1::StepReport::Link& p) {
  RETURN_IF_ERROR(CheckName("step_report.link.peer_site", p.peer_site()));
  RETURN_IF_ERROR(CheckMeasure("step_report.link.goodput_bytes_per_second",
                               p.goodput_bytes_per_second()));
  RETURN_IF_ERROR(
      CheckMeasure("step_report.link.rtt_seconds", p.rtt_seconds()));
  return StepReport::Link{p.peer_site(), p.sent_bytes(), p.received_bytes(),
                          p.goodput_bytes_per_second(), p.rtt_seconds()};
}

absl::StatusOr<StepReport::Noise> Read(const v1::StepReport::Noise& p) {
  RETURN_IF_ERROR(CheckMeasure("step_report.noise.local", p.local()));
  RETURN_IF_ERROR(CheckMeasure("step_report.noise.site", p.site()));
  RETURN_IF_ERROR(CheckMeasure("step_report.noise.encoded", p.encoded()));
  RETURN_IF_ERROR(CheckMeasure("step_report.noise.error", p.error()));
  RETURN_IF_ERROR(CheckMeasure("step_report.noise.clip", p.clip()));
  RETURN_IF_ERROR(CheckMeasure("step_report.noise.total", p.total()));
  return StepReport::Noise{p.step(),    p.decision_version(),
                           p.local(),   p.site(),
                           p.encoded(), p.error(),
                           p.clip(),    p.total()};
}

absl::StatusOr<StepReport> Read(const v1::StepReport& p,
                                const v1::Group& group) {
  StepReport m;
  ASSIGN_OR_RETURN(m.group, FromProto(group));
  RETURN_IF_ERROR(CheckMeasure("step_report.step_seconds", p.step_seconds()));
  RETURN_IF_ERROR(CheckMeasure("step_report.wait_seconds", p.wait_seconds()));
  RETURN_IF_ERROR(
      CheckMeasure("step_report.interval_seconds", p.interval_seconds()));
  RETURN_IF_ERROR(CheckRange("step_report.noise (their number)", p.noise_size(),
                             0, kMaxNoiseSamples));
  RETURN_IF_ERROR(CheckStep("step_report.committed_step", p.committed_step()));
  RETURN_IF_ERROR(
      CheckStep("step_report.first_compacted_step", p.first_compacted_step()));
  RETURN_IF_ERROR(CheckRange("step_report.links (their number)", p.links_size(),
                             0, kMaxSites));
  m.generation = p.generation();
  m.committed_step = p.committed_step();
  m.committed_count = p.committed_count();
  m.decision_version = p.decision_version();
  m.failed_attempts = p.failed_attempts();
  m.sent_bytes = p.sent_bytes();
  m.sent_kept_bytes = p.sent_kept_bytes();
  m.sent_dense_bytes = p.sent_dense_bytes();
  RETURN_IF_ERROR(CheckMoved("step_report.waits_for", p.waits_for()));
  m.waits_for = p.waits_for();
  m.step_seconds = p.step_seconds();
  m.wait_seconds = p.wait_seconds();
  m.interval_seconds = p.interval_seconds();
  if (p.has_first_compacted_step()) {
    m.first_compacted_step = p.first_compacted_step();
  }
  RETURN_IF_ERROR(CheckRange("step_report.failed_by_cause (their number)",
                             p.failed_by_cause_size(), 0, kMaxCauses));
  for (const v1::FailedAttempts& in : p.failed_by_cause()) {
    // One that a newer agent knows is in failed_attempts all the same.
    if (in.cause() < kCauses) m.failed_by_cause[in.cause()] = in.count();
  }
  if (p.has_keep_by_parameter()) {
    ASSIGN_OR_RETURN(m.keep_by_parameter, FromProto(p.keep_by_parameter()));
  }
  if (p.has_device_path()) {
    ASSIGN_OR_RETURN(m.device_path, FromProto(p.device_path()));
  }
  for (const v1::StepReport::Noise& in : p.noise()) {
    ASSIGN_OR_RETURN(m.noise.emplace_back(), Read(in));
  }
  for (const v1::StepReport::Link& in : p.links()) {
    ASSIGN_OR_RETURN(StepReport::Link link, Read(in));
    m.links.push_back(std::move(link));
  }
  return m;
}

absl::StatusOr<AgentMessage> Read(const v1::LocalTrainers& p) {
  LocalTrainers m;
  ASSIGN_OR_RETURN(m.group, FromProto(p.group()));
  RETURN_IF_ERROR(
      CheckRange("local_trainers.revision", p.revision(), 1, ~uint64_t{0}));
  RETURN_IF_ERROR(CheckRange("local_trainers.here (their number)",
                             p.here_size(), 0, kMaxLocalTrainers));
  RETURN_IF_ERROR(CheckRange("local_trainers.left (their number)",
                             p.left_size(), 0, 2 * kMaxLocalTrainers));
  RETURN_IF_ERROR(CheckRange("local_trainers.votes (their number)",
                             p.votes_size(), 0, kMaxLocalTrainers));
  m.revision = p.revision();
  for (const v1::TrainerJoined& in : p.here()) {
    ASSIGN_OR_RETURN(m.here.emplace_back(), Read(in, p.group()));
  }
  for (const v1::TrainerLeft& in : p.left()) {
    ASSIGN_OR_RETURN(m.left.emplace_back(), Read(in, p.group()));
  }
  for (const v1::MaskVote& in : p.votes()) {
    ASSIGN_OR_RETURN(m.votes.emplace_back(), Read(in, p.group()));
  }
  if (p.has_report()) {
    ASSIGN_OR_RETURN(m.report, Read(p.report(), p.group()));
  }
  return m;
}

}  // namespace

v1::AgentMessage ToProto(const AgentMessage& message) {
  v1::AgentMessage proto;
  std::visit(Writer{proto}, message);
  return proto;
}

absl::StatusOr<AgentMessage> FromProto(const v1::AgentMessage& proto) {
  switch (proto.kind_case()) {
    case v1::AgentMessage::kHello:
      return Read(proto.hello());
    case v1::AgentMessage::kHeartbeat:
      return Read(proto.heartbeat());
    case v1::AgentMessage::kLocalTrainers:
      return Read(proto.local_trainers());
    case v1::AgentMessage::kTrainerJoined: {
      const v1::TrainerJoined& p = proto.trainer_joined();
      ASSIGN_OR_RETURN(TrainerJoined joined, Read(p, p.group()));
      return LocalTrainers{joined.group, 0, {joined}, {}, {}};
    }
    case v1::AgentMessage::kTrainerLeft: {
      const v1::TrainerLeft& p = proto.trainer_left();
      ASSIGN_OR_RETURN(TrainerLeft left, Read(p, p.group()));
      return LocalTrainers{left.group, 0, {}, {left}, {}};
    }
    case v1::AgentMessage::kMaskVote: {
      const v1::MaskVote& p = proto.mask_vote();
      ASSIGN_OR_RETURN(MaskVote vote, Read(p, p.group()));
      return LocalTrainers{vote.group, 0, {}, {}, {vote}};
    }
    case v1::AgentMessage::kPrepareAnswer:
      return Read(proto.prepare_answer());
    case v1::AgentMessage::kStepReport:
      return Read(proto.step_report(), proto.step_report().group());
    case v1::AgentMessage::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "agent message of no kind known here: the agent is newer than the "
      "coordinator");
}

}  // namespace pactrain::protocol
