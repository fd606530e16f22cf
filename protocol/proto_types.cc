// types.h <-> types.proto.
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "protocol/limits.h"
#include "protocol/proto_check.h"
#include "protocol/proto_convert.h"

namespace pactrain::protocol {
namespace {

v1::Member ToProto(const Member& member) {
  v1::Member proto;
  proto.set_agent(member.agent);
  proto.set_incarnation(WriteDigest(member.incarnation));
  proto.set_site(member.site);
  proto.set_data_address(member.data_address);
  for (uint32_t rank : member.ranks) proto.add_ranks(rank);
  for (const Digest& id : member.attach_ids)
    proto.add_attach_ids(WriteDigest(id));
  proto.set_proves(member.proves);
  return proto;
}

absl::StatusOr<Member> FromProto(const v1::Member& proto) {
  Member member;
  RETURN_IF_ERROR(CheckName("member.agent", proto.agent()));
  RETURN_IF_ERROR(CheckName("member.site", proto.site()));
  RETURN_IF_ERROR(CheckLength("member.data_address", proto.data_address(),
                              kMaxAddressLength));
  RETURN_IF_ERROR(CheckRange("member.ranks (their number)", proto.ranks_size(),
                             1, kMaxTrainersPerAgent));
  if (proto.ranks_size() != proto.attach_ids_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("member.attach_ids has ", proto.attach_ids_size(),
                     " entries; ranks has ", proto.ranks_size()));
  }
  member.agent = proto.agent();
  ASSIGN_OR_RETURN(member.incarnation,
                   ReadDigest("member.incarnation", proto.incarnation(), true));
  member.site = proto.site();
  member.data_address = proto.data_address();
  member.ranks.assign(proto.ranks().begin(), proto.ranks().end());
  for (const std::string& id : proto.attach_ids()) {
    ASSIGN_OR_RETURN(Digest attach_id,
                     ReadDigest("member.attach_ids", id, true));
    member.attach_ids.push_back(attach_id);
  }
  member.proves = proto.proves();
  return member;
}

v1::Plan ToProto(const Plan& plan) {
  v1::Plan proto;
  proto.set_swap(plan.swap);
  proto.set_even_chunks(plan.even_chunks);
  for (const Plan::Tree& tree : plan.trees) {
    v1::Plan::Tree* out = proto.add_trees();
    for (uint16_t parent : tree.parent) out->add_parent(parent);
  }
  return proto;
}

absl::StatusOr<Plan> FromProto(const v1::Plan& proto) {
  Plan plan;
  plan.swap = proto.swap();
  plan.even_chunks = proto.even_chunks();
  RETURN_IF_ERROR(CheckRange("plan.trees (their number)", proto.trees_size(), 0,
                             kMaxSites));
  for (const v1::Plan::Tree& in : proto.trees()) {
    RETURN_IF_ERROR(CheckRange("plan.tree.parent (their number)",
                               in.parent_size(), 1, kMaxSites));
    Plan::Tree tree;
    for (uint32_t parent : in.parent()) {
      RETURN_IF_ERROR(CheckRange("plan.tree.parent", parent, 0, kMaxSites - 1));
      tree.parent.push_back(static_cast<uint16_t>(parent));
    }
    plan.trees.push_back(std::move(tree));
  }
  return plan;
}

}  // namespace

v1::Group ToProto(const GroupId& group) {
  v1::Group proto;
  proto.set_job(group.job);
  proto.set_model(group.model);
  return proto;
}

absl::StatusOr<GroupId> FromProto(const v1::Group& proto) {
  RETURN_IF_ERROR(CheckName("group.job", proto.job()));
  RETURN_IF_ERROR(CheckRange("group.model", proto.model(), 0, kMaxModels - 1));
  return GroupId{proto.job(), static_cast<uint16_t>(proto.model())};
}

absl::StatusOr<OnShrink> ReadOnShrink(absl::string_view field,
                                      v1::OnShrink value) {
  RETURN_IF_ERROR(CheckRange(field, static_cast<uint32_t>(value),
                             v1::ON_SHRINK_UNSPECIFIED,
                             v1::ON_SHRINK_CONTINUE));
  return static_cast<OnShrink>(value);
}

v1::AuditHead ToProto(const AuditHead& head) {
  v1::AuditHead proto;
  proto.set_term(head.term);
  proto.set_number(head.number);
  proto.set_hash(head.hash);
  proto.set_proof(head.proof.bytes.data(), head.proof.bytes.size());
  return proto;
}

absl::StatusOr<AuditHead> FromProto(const v1::AuditHead& proto) {
  AuditHead head;
  RETURN_IF_ERROR(CheckRange("audit.term", proto.term(), 1, ~uint64_t{0}));
  head.term = proto.term();
  RETURN_IF_ERROR(CheckRange("audit.number", proto.number(), 1, ~uint64_t{0}));
  head.number = proto.number();
  RETURN_IF_ERROR(CheckRange("audit.hash's bytes", proto.hash().size(),
                             kAuditHashBytes, kAuditHashBytes));
  head.hash = proto.hash();
  ASSIGN_OR_RETURN(head.proof, ReadSecret("audit.proof", proto.proof()));
  return head;
}

v1::HistoryMark ToProto(const HistoryMark& mark) {
  v1::HistoryMark proto;
  proto.set_writer(WriteDigest(mark.writer));
  proto.set_batches(mark.batches);
  proto.set_before(WriteDigest(mark.before));
  proto.set_batches_before(mark.batches_before);
  proto.set_total(mark.total);
  proto.set_proof(mark.proof.bytes.data(), mark.proof.bytes.size());
  if (!mark.audit.empty()) *proto.mutable_audit() = ToProto(mark.audit);
  return proto;
}

absl::StatusOr<HistoryMark> FromProto(const v1::HistoryMark& proto) {
  HistoryMark mark;
  ASSIGN_OR_RETURN(mark.writer,
                   ReadDigest("history.writer", proto.writer(), true));
  RETURN_IF_ERROR(
      CheckRange("history.batches", proto.batches(), 1, ~uint64_t{0}));
  mark.batches = proto.batches();
  ASSIGN_OR_RETURN(mark.before,
                   ReadDigest("history.before", proto.before(), false));
  RETURN_IF_ERROR(CheckRange("history.batches_before", proto.batches_before(),
                             mark.before.empty() ? 0 : 1,
                             mark.before.empty() ? 0 : ~uint64_t{0}));
  mark.batches_before = proto.batches_before();
  RETURN_IF_ERROR(CheckRange("history.total", proto.total(), 1, ~uint64_t{0}));
  mark.total = proto.total();
  ASSIGN_OR_RETURN(mark.proof, ReadSecret("history.proof", proto.proof()));
  if (proto.has_audit()) {
    ASSIGN_OR_RETURN(mark.audit, FromProto(proto.audit()));
  }
  return mark;
}

v1::Onset ToProto(const Onset& onset) {
  v1::Onset proto;
  proto.set_activate_every(onset.activate_every);
  if (onset.pin_from == 0) return proto;
  proto.set_pin_from(onset.pin_from);
  proto.set_pin_mode(static_cast<v1::Mode>(onset.pin_mode));
  proto.set_pin_codec(static_cast<v1::Codec>(onset.pin_codec));
  return proto;
}

absl::StatusOr<Onset> FromProto(const v1::Onset& proto) {
  Onset onset;
  onset.activate_every = proto.activate_every();
  onset.pin_from = proto.pin_from();
  if (onset.pin_from != 0) {
    RETURN_IF_ERROR(CheckRange("onset.pin_mode",
                               static_cast<uint32_t>(proto.pin_mode()),
                               v1::MODE_FULL, v1::MODE_TERNARY));
    RETURN_IF_ERROR(CheckRange("onset.pin_codec",
                               static_cast<uint32_t>(proto.pin_codec()),
                               v1::CODEC_FP32, v1::CODEC_LEVELS31));
    onset.pin_mode = static_cast<Mode>(proto.pin_mode());
    onset.pin_codec = static_cast<Codec>(proto.pin_codec());
  }
  RETURN_IF_ERROR(CheckOnset(onset));
  return onset;
}

v1::Decision ToProto(const Decision& decision) {
  v1::Decision proto;
  proto.set_version(decision.version);
  proto.set_mode(static_cast<v1::Mode>(decision.mode));
  proto.set_codec(static_cast<v1::Codec>(decision.codec));
  proto.set_mask_digest(WriteDigest(decision.mask_digest));
  proto.set_layout_digest(WriteDigest(decision.layout_digest));
  proto.set_reason(WriteText(decision.reason, kMaxReasonLength));
  return proto;
}

absl::StatusOr<Decision> FromProto(const v1::Decision& proto) {
  Decision decision;
  RETURN_IF_ERROR(
      CheckRange("decision.version", proto.version(), 1, ~uint64_t{0}));
  RETURN_IF_ERROR(CheckRange("decision.mode",
                             static_cast<uint32_t>(proto.mode()), v1::MODE_FULL,
                             v1::MODE_TERNARY));
  RETURN_IF_ERROR(CheckRange("decision.codec",
                             static_cast<uint32_t>(proto.codec()),
                             v1::CODEC_FP32, v1::CODEC_LEVELS31));
  RETURN_IF_ERROR(
      CheckLength("decision.reason", proto.reason(), kMaxReasonLength));
  decision.version = proto.version();
  decision.mode = static_cast<Mode>(proto.mode());
  decision.codec = static_cast<Codec>(proto.codec());
  ASSIGN_OR_RETURN(decision.mask_digest,
                   ReadDigest("decision.mask_digest", proto.mask_digest(),
                              decision.mode == Mode::kCompacted));
  ASSIGN_OR_RETURN(decision.layout_digest,
                   ReadDigest("decision.layout_digest", proto.layout_digest(),
                              !decision.mask_digest.empty()));
  RETURN_IF_ERROR(CheckDecision(decision));
  decision.reason = proto.reason();
  return decision;
}

v1::Lineage ToProto(const Lineage& lineage) {
  v1::Lineage proto;
  proto.set_id(WriteDigest(lineage.id));
  proto.set_committed(lineage.committed);
  return proto;
}

absl::StatusOr<Lineage> ReadLineage(absl::string_view field,
                                    const v1::Lineage& proto, bool required) {
  Lineage lineage;
  ASSIGN_OR_RETURN(
      lineage.id, ReadDigest(absl::StrCat(field, ".id"), proto.id(), required));
  RETURN_IF_ERROR(CheckRange(absl::StrCat(field, ".committed"),
                             proto.committed(), 0, kMaxStep));
  lineage.committed = proto.committed();
  return lineage;
}

v1::KeepByParameter ToProto(const KeepByParameter& keep) {
  v1::KeepByParameter proto;
  proto.set_mask_digest(WriteDigest(keep.mask_digest));
  for (const KeepByParameter::Parameter& parameter : keep.parameters) {
    v1::KeepByParameter::Parameter& out = *proto.add_parameters();
    out.set_name(WriteText(parameter.name, kMaxNameLength));
    out.set_kept(parameter.kept);
    out.set_elements(parameter.elements);
  }
  proto.set_others(keep.others);
  proto.set_others_kept(keep.others_kept);
  proto.set_others_elements(keep.others_elements);
  return proto;
}

v1::DevicePath ToProto(const DevicePath& path) {
  v1::DevicePath proto;
  proto.set_name(WriteText(path.name, kMaxMoved));
  proto.set_reason(WriteText(path.reason, kMaxMoved));
  proto.set_nccl_buckets(path.nccl_buckets);
  proto.set_nccl_fallbacks(path.nccl_fallbacks);
  return proto;
}

absl::StatusOr<DevicePath> FromProto(const v1::DevicePath& proto) {
  RETURN_IF_ERROR(CheckMoved("device_path.name", proto.name()));
  RETURN_IF_ERROR(CheckMoved("device_path.reason", proto.reason()));
  return DevicePath{proto.name(), proto.reason(), proto.nccl_buckets(),
                    proto.nccl_fallbacks()};
}

absl::StatusOr<KeepByParameter> FromProto(const v1::KeepByParameter& proto) {
  KeepByParameter keep;
  RETURN_IF_ERROR(CheckRange("keep_by_parameter.parameters (their number)",
                             proto.parameters_size(), 0, kMaxKeepParameters));
  ASSIGN_OR_RETURN(keep.mask_digest, ReadDigest("keep_by_parameter.mask_digest",
                                                proto.mask_digest(), true));
  for (const v1::KeepByParameter::Parameter& in : proto.parameters()) {
    keep.parameters.push_back({in.name(), in.kept(), in.elements()});
  }
  keep.others = proto.others();
  keep.others_kept = proto.others_kept();
  keep.others_elements = proto.others_elements();
  RETURN_IF_ERROR(CheckKeep("keep_by_parameter", keep));
  return keep;
}

v1::Generation ToProto(const Generation& generation) {
  v1::Generation proto;
  *proto.mutable_group() = ToProto(generation.group);
  proto.set_term(generation.term);
  proto.set_number(generation.number);
  proto.set_world_size(generation.world_size);
  proto.set_launch(WriteText(generation.launch, kMaxNameLength));
  proto.set_base_step(generation.base_step);
  for (const std::string& site : generation.sites) proto.add_sites(site);
  for (const Member& member : generation.members) {
    *proto.add_members() = ToProto(member);
  }
  *proto.mutable_plan() = ToProto(generation.plan);
  *proto.mutable_decision() = ToProto(generation.decision);
  proto.set_on_shrink(static_cast<v1::OnShrink>(generation.on_shrink));
  if (generation.donor) proto.set_donor(*generation.donor);
  for (uint32_t rank : generation.needs_state) proto.add_needs_state(rank);
  *proto.mutable_onset() = ToProto(generation.onset);
  *proto.mutable_lineage() = ToProto(generation.lineage);
  return proto;
}

absl::StatusOr<Generation> FromProto(const v1::Generation& proto) {
  Generation generation;
  ASSIGN_OR_RETURN(generation.group, FromProto(proto.group()));
  RETURN_IF_ERROR(
      CheckLength("generation.launch", proto.launch(), kMaxNameLength));
  RETURN_IF_ERROR(CheckRange("generation.sites (their number)",
                             proto.sites_size(), 1, kMaxSites));
  RETURN_IF_ERROR(CheckRange("generation.members (their number)",
                             proto.members_size(), 1, kMaxAgents));
  generation.term = proto.term();
  generation.number = proto.number();
  generation.world_size = proto.world_size();
  generation.launch = proto.launch();
  generation.base_step = proto.base_step();
  generation.sites.assign(proto.sites().begin(), proto.sites().end());
  for (const v1::Member& in : proto.members()) {
    ASSIGN_OR_RETURN(Member member, FromProto(in));
    generation.members.push_back(std::move(member));
  }
  ASSIGN_OR_RETURN(generation.plan, FromProto(proto.plan()));
  ASSIGN_OR_RETURN(generation.decision, FromProto(proto.decision()));
  ASSIGN_OR_RETURN(generation.on_shrink,
                   ReadOnShrink("generation.on_shrink", proto.on_shrink()));
  if (proto.has_donor()) generation.donor = proto.donor();
  RETURN_IF_ERROR(CheckRange("generation.needs_state (their number)",
                             proto.needs_state_size(), 0, kMaxRanks));
  generation.needs_state.assign(proto.needs_state().begin(),
                                proto.needs_state().end());
  ASSIGN_OR_RETURN(generation.onset, FromProto(proto.onset()));
  ASSIGN_OR_RETURN(generation.lineage,
                   ReadLineage("generation.lineage", proto.lineage(), true));
  RETURN_IF_ERROR(CheckGeneration(generation));
  return generation;
}

}  // namespace pactrain::protocol
