#include "protocol/types.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "protocol/limits.h"

namespace pactrain::protocol {

using base::DigestBuilder;

absl::string_view ModeName(Mode mode) {
  switch (mode) {
    case Mode::kFull:
      return "FULL";
    case Mode::kCompacted:
      return "COMPACTED";
    case Mode::kTernary:
      return "TERNARY";
  }
  return "unknown mode";
}

absl::string_view CodecName(Codec codec) {
  switch (codec) {
    case Codec::kFp32:
      return "fp32";
    case Codec::kBf16:
      return "bf16";
    case Codec::kLevels3:
      return "3 levels";
    case Codec::kLevels5:
      return "5 levels";
    case Codec::kLevels7:
      return "7 levels";
    case Codec::kLevels15:
      return "15 levels";
    case Codec::kLevels31:
      return "31 levels";
  }
  return "unknown codec";
}

absl::string_view OnShrinkName(OnShrink on_shrink) {
  switch (on_shrink) {
    case OnShrink::kAbort:
      return "abort";
    case OnShrink::kPause:
      return "pause";
    case OnShrink::kContinue:
      return "continue";
  }
  return "unknown on_shrink";
}

std::string GroupId::ToString() const {
  return model == 0 ? job : absl::StrCat(job, "/", model);
}

namespace {

void AddPlan(const Plan& plan, DigestBuilder& digest) {
  digest.Add(uint64_t{plan.swap}).Add(uint64_t{plan.trees.size()});
  for (const Plan::Tree& tree : plan.trees) {
    digest.Add(uint64_t{tree.parent.size()});
    for (uint16_t parent : tree.parent) digest.Add(uint64_t{parent});
  }
  // Else as agents of the release before reckon it.
  if (plan.even_chunks) digest.Add(uint64_t{plan.even_chunks});
}

void AddMember(const Member& member, DigestBuilder& digest) {
  digest.Add(member.agent).Add(member.incarnation).Add(member.site);
  digest.Add(member.data_address).Add(uint64_t{member.ranks.size()});
  for (uint32_t rank : member.ranks) digest.Add(uint64_t{rank});
  digest.Add(uint64_t{member.attach_ids.size()});
  for (const Digest& id : member.attach_ids) digest.Add(id);
}

void AddDecision(const Decision& decision, DigestBuilder& digest) {
  digest.Add(decision.version).Add(static_cast<uint64_t>(decision.mode));
  digest.Add(static_cast<uint64_t>(decision.codec));
  digest.Add(decision.mask_digest).Add(decision.layout_digest);
}

// One root, and every site reaches it.
absl::Status CheckTree(const Plan::Tree& tree, size_t sites) {
  if (tree.parent.size() != sites) {
    return absl::InvalidArgumentError(
        absl::StrFormat("plan: a tree has %d sites, the generation %d",
                        tree.parent.size(), sites));
  }
  int roots = 0;
  for (size_t site = 0; site < sites; ++site) {
    if (tree.parent[site] >= sites) {
      return absl::InvalidArgumentError(
          absl::StrFormat("plan: parent %d of site %d is not one of %d sites",
                          tree.parent[site], site, sites));
    }
    if (tree.parent[site] == site) ++roots;
  }
  if (roots != 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("plan: a tree has %d roots; want 1", roots));
  }
  for (size_t site = 0; site < sites; ++site) {
    size_t at = site, hops = 0;
    while (tree.parent[at] != at && hops <= sites) at = tree.parent[at], ++hops;
    if (hops > sites) {
      return absl::InvalidArgumentError(
          absl::StrFormat("plan: site %d is on a cycle", site));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPlan(const Plan& plan, size_t sites) {
  if (plan.swap != plan.trees.empty()) {
    return absl::InvalidArgumentError(
        "plan: trees must be empty if and only if swap is set");
  }
  if (plan.swap && sites != 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("plan: swap is for two sites, there are %d", sites));
  }
  if (plan.trees.size() > static_cast<size_t>(kMaxSites)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "plan: %d trees; at most %d", plan.trees.size(), kMaxSites));
  }
  for (const Plan::Tree& tree : plan.trees)
    RETURN_IF_ERROR(CheckTree(tree, sites));
  return absl::OkStatus();
}

absl::Status CheckSites(const std::vector<std::string>& sites) {
  if (sites.empty() || sites.size() > static_cast<size_t>(kMaxSites)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sites: %d; want 1..%d", sites.size(), kMaxSites));
  }
  for (size_t i = 0; i < sites.size(); ++i) {
    RETURN_IF_ERROR(CheckName("site", sites[i]));
    if (i > 0 && !(sites[i - 1] < sites[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("sites: not ascending at \"", sites[i], "\""));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMember(const Member& member, const Generation& generation) {
  RETURN_IF_ERROR(CheckName("agent", member.agent));
  if (!std::binary_search(generation.sites.begin(), generation.sites.end(),
                          member.site)) {
    return absl::InvalidArgumentError(
        absl::StrCat("agent ", member.agent, ": site \"", member.site,
                     "\" is not one of the generation's"));
  }
  if (member.incarnation.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("agent ", member.agent, ": no incarnation"));
  }
  if (member.data_address.empty() || member.data_address.size() > 255) {
    return absl::InvalidArgumentError(
        absl::StrFormat("agent %s: data_address has %d bytes; want 1..255",
                        member.agent, member.data_address.size()));
  }
  if (member.ranks.empty() ||
      member.ranks.size() > static_cast<size_t>(kMaxTrainersPerAgent) ||
      member.ranks.size() != member.attach_ids.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "agent %s: %d ranks with %d attach ids; want 1..%d of both",
        member.agent, member.ranks.size(), member.attach_ids.size(),
        kMaxTrainersPerAgent));
  }
  if (!std::is_sorted(member.ranks.begin(), member.ranks.end())) {
    return absl::InvalidArgumentError(
        absl::StrCat("agent ", member.agent, ": ranks are not ascending"));
  }
  return absl::OkStatus();
}

absl::Status CheckMembers(const Generation& generation) {
  const auto& members = generation.members;
  if (members.empty() || members.size() > static_cast<size_t>(kMaxAgents)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("members: %d; want 1..%d", members.size(), kMaxAgents));
  }
  std::vector<bool> have(generation.world_size);
  std::vector<bool> used(generation.sites.size());
  size_t ranks = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    RETURN_IF_ERROR(CheckMember(members[i], generation));
    used[generation.SiteOf(i)] = true;
    if (i > 0 && !(std::tie(members[i - 1].site, members[i - 1].agent) <
                   std::tie(members[i].site, members[i].agent))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "members: not ordered by (site, agent) at ", members[i].agent));
    }
    for (uint32_t rank : members[i].ranks) {
      if (rank >= generation.world_size || have[rank]) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "agent %s: rank %d is repeated or not under world_size %d",
            members[i].agent, rank, generation.world_size));
      }
      have[rank] = true;
      ++ranks;
    }
  }
  if (ranks != generation.world_size) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "members: %d ranks; world_size is %d", ranks, generation.world_size));
  }
  if (std::find(used.begin(), used.end(), false) != used.end()) {
    return absl::InvalidArgumentError("sites: one has no member");
  }
  return absl::OkStatus();
}

absl::Status CheckDonor(const Generation& generation) {
  if (generation.lineage.id.empty()) {
    return absl::InvalidArgumentError("lineage: it has no id");
  }
  const auto& needy = generation.needs_state;
  if (!generation.donor) {
    if (needy.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("needs_state: %d ranks without a donor", needy.size()));
  }
  const uint32_t donor = *generation.donor;
  if (donor >= generation.world_size ||
      std::find(needy.begin(), needy.end(), donor) != needy.end()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("donor: rank %d needs the state itself or is not under "
                        "world_size %d",
                        donor, generation.world_size));
  }
  for (size_t i = 0; i < needy.size(); ++i) {
    if (needy[i] >= generation.world_size ||
        (i > 0 && needy[i - 1] >= needy[i])) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "needs_state: rank %d is not ascending or not under world_size %d",
          needy[i], generation.world_size));
    }
  }
  return absl::OkStatus();
}

void AddOnset(const Onset& onset, DigestBuilder& digest) {
  digest.Add(uint64_t{onset.activate_every}).Add(onset.pin_from);
  digest.Add(static_cast<uint64_t>(onset.pin_mode));
  digest.Add(static_cast<uint64_t>(onset.pin_codec));
}

bool IsNameEdge(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

}  // namespace

Digest Plan::ComputeDigest() const {
  DigestBuilder digest;
  AddPlan(*this, digest);
  return digest.Build();
}

Digest Generation::ComputeDigest() const {
  DigestBuilder digest;
  digest.Add(group.job).Add(uint64_t{group.model}).Add(term).Add(number);
  digest.Add(uint64_t{world_size}).Add(launch).Add(base_step);
  digest.Add(uint64_t{sites.size()});
  for (const std::string& site : sites) digest.Add(site);
  digest.Add(uint64_t{members.size()});
  for (const Member& member : members) AddMember(member, digest);
  AddPlan(plan, digest);
  AddDecision(decision, digest);
  digest.Add(static_cast<uint64_t>(on_shrink));
  digest.Add(uint64_t{donor.has_value()}).Add(uint64_t{donor.value_or(0)});
  digest.Add(uint64_t{needs_state.size()});
  for (uint32_t rank : needs_state) digest.Add(uint64_t{rank});
  digest.Add(lineage.id).Add(lineage.committed);
  AddOnset(onset, digest);
  return digest.Build();
}

int Generation::SiteOf(int member) const {
  return static_cast<int>(
      std::lower_bound(sites.begin(), sites.end(), members[member].site) -
      sites.begin());
}

std::vector<int> Generation::MembersOfSite(int site) const {
  std::vector<int> result;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].site == sites[site]) result.push_back(static_cast<int>(i));
  }
  return result;
}

absl::Status CheckName(absl::string_view what, absl::string_view name) {
  bool ok = !name.empty() && name.size() <= kMaxNameLength &&
            IsNameEdge(name.front()) && IsNameEdge(name.back());
  for (char c : name)
    ok = ok && (IsNameEdge(c) || c == '-' || c == '.' || c == '_');
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: \"%s\" is not a name; use 1..%d of a-z, 0-9, '-', '.', '_' with a "
      "letter "
      "or digit at both ends",
      what, name.substr(0, kMaxNameLength + 1), kMaxNameLength));
}

absl::Status CheckMoved(absl::string_view what, absl::string_view moved) {
  const bool printable =
      std::all_of(moved.begin(), moved.end(),
                  [](unsigned char c) { return absl::ascii_isprint(c); });
  if (printable && moved.size() <= kMaxMoved) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s has %d bytes%s; at most %d of printable ASCII are "
      "allowed",
      what, moved.size(), printable ? "" : ", not all printable", kMaxMoved));
}

absl::Status CheckDecision(const Decision& d) {
  const auto refuse = [&](absl::string_view field, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "decision.", field, ": ", ModeName(d.mode), " ", CodecName(d.codec),
        " with ", d.mask_digest.empty() ? "no" : "a", " mask set; ", what));
  };
  if (IsLevels(d.codec) != (d.mode == Mode::kTernary)) {
    return refuse("mode",
                  "codecs of n levels go with TERNARY, and it with them");
  }
  if (d.mode == Mode::kFull && !d.mask_digest.empty()) {
    return refuse("mask_digest", "it must be empty for FULL");
  }
  if (d.mode == Mode::kCompacted && d.mask_digest.empty()) {
    return refuse("mask_digest", "COMPACTED needs one");
  }
  if (d.mask_digest.empty() != d.layout_digest.empty()) {
    return refuse("layout_digest",
                  "a layout goes with a mask set, and only with one");
  }
  return absl::OkStatus();
}

absl::Status CheckOnset(const Onset& onset) {
  if (onset.activate_every > kMaxOnset || onset.pin_from > kMaxOnset) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "onset: activate_every is %d and pin_from %d; at most %d each",
        onset.activate_every, onset.pin_from, kMaxOnset));
  }
  if (onset.pin_from == 0 ||
      IsLevels(onset.pin_codec) == (onset.pin_mode == Mode::kTernary)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "onset: the pin is ", ModeName(onset.pin_mode), " ",
      CodecName(onset.pin_codec),
      "; TERNARY goes with n levels, FULL and COMPACTED with fp32 or bf16"));
}

absl::Status CheckGeneration(const Generation& generation) {
  RETURN_IF_ERROR(CheckName("job", generation.group.job));
  if (generation.group.model >= kMaxModels) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "model: %d; want under %d", generation.group.model, kMaxModels));
  }
  if (generation.number == 0) {
    return absl::InvalidArgumentError("generation number: 0; want 1 or more");
  }
  if (generation.world_size == 0 ||
      generation.world_size > static_cast<uint32_t>(kMaxRanks)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "world_size: %d; want 1..%d", generation.world_size, kMaxRanks));
  }
  if (generation.launch.size() > kMaxNameLength) {
    return absl::InvalidArgumentError(
        absl::StrFormat("launch: %d bytes; at most %d",
                        generation.launch.size(), kMaxNameLength));
  }
  RETURN_IF_ERROR(CheckSites(generation.sites));
  RETURN_IF_ERROR(CheckMembers(generation));
  RETURN_IF_ERROR(CheckDonor(generation));
  RETURN_IF_ERROR(CheckOnset(generation.onset));
  return CheckPlan(generation.plan, generation.sites.size());
}

}  // namespace pactrain::protocol
