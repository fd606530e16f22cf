// The words of the glossary (ARCHITECTURE.md) as types: what a generation, a
// decision and a plan are. Shared by coordinator, agents and the simulator.
//
// Plain values without behaviour beyond their digests. Thread-compatible.
#ifndef PACTRAIN_PROTOCOL_TYPES_H_
#define PACTRAIN_PROTOCOL_TYPES_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "base/secret.h"

namespace pactrain::protocol {

using base::Digest;

// What travels. DENSE is not a mode: it is said of one attempt that sends all
// elements in fp32 although the decision in force says otherwise.
enum class Mode : uint8_t { kFull = 1, kCompacted = 2, kTernary = 3 };
enum class Codec : uint8_t {
  kFp32 = 1,
  kBf16 = 2,
  kLevels3 = 3,  // n levels: kernels/levels.h.
  kLevels5 = 4,
  kLevels7 = 5,
  kLevels15 = 6,
  kLevels31 = 7,
};
inline constexpr Codec kLastCodec = Codec::kLevels31;
constexpr bool IsLevels(Codec codec) { return codec >= Codec::kLevels3; }
// How contributions are combined: gradients are summed; a broadcast of bytes is
// a bitwise XOR to which all ranks but one contribute zeros (exact for any
// bits).
enum class Op : uint8_t { kSum = 1, kXor = 2 };

// What a group does when its ranks become fewer: end for good, wait for as many
// as before, or go on with those that are left. Unless kAbort its trainers may
// come and go: the end of a generation is the beginning of the next one.
enum class OnShrink : uint8_t { kAbort = 0, kPause = 1, kContinue = 2 };

absl::string_view ModeName(Mode mode);     // "FULL", "COMPACTED", "TERNARY".
absl::string_view CodecName(Codec codec);  // "fp32", "bf16", "7 levels".
absl::string_view OnShrinkName(OnShrink on_shrink);  // "abort", "pause", ...

// One attached model of a job. Each model of a job has generations, decisions
// and steps of its own.
struct GroupId {
  std::string job;
  uint16_t model = 0;
  auto operator<=>(const GroupId&) const = default;
  std::string ToString() const;  // "job" for model 0, else "job/2".
};

// The mask set that a trainer wants from its first step on.
struct Declared {
  Digest mask_digest;  // As in MaskVote.
  Digest layout_digest;
  uint64_t kept_elements = 0;
  uint64_t elements = 0;  // 0: nothing is declared.
  bool operator==(const Declared&) const = default;
};

// With which steps decisions may come in force, so that equal runs switch at
// equal steps. Steps are those of gradients, counted from 1 in each generation.
struct Onset {
  // Other masks come in force with a multiple of this; 0: with any step.
  uint32_t activate_every = 0;
  // With this step what is pinned comes in force, before it all is exact; 0:
  // nothing is pinned.
  uint64_t pin_from = 0;
  Mode pin_mode = Mode::kFull;
  Codec pin_codec = Codec::kFp32;
  bool operator==(const Onset&) const = default;
};

// A state of a job and what it came of: gradient steps one after the other,
// from one beginning. A state of another lineage is of no use here, and within
// one the state with more committed steps is the newer one.
struct Lineage {
  Digest id;               // Empty: none.
  uint64_t committed = 0;  // Gradient steps; a checkpoint may begin with some.
  bool operator==(const Lineage&) const = default;
};

// One trainer as it attached. `attach_id` is random and new for every attach,
// so that a restarted trainer never passes for its predecessor. Its upper half
// stays as long as a trainer attaches again, so that it is known to be the
// same.
struct Trainer {
  uint32_t rank = 0;
  uint32_t world_size = 0;
  Digest attach_id;
  // Equal for all trainers that one launch started; another after a restart.
  std::string launch;
  // Over parameter names, shapes and dtypes: all ranks must train one model.
  Digest model_digest;
  std::string model_summary;  // "Net: 62 parameters of float32, ..."
  uint64_t elements = 0;      // Of all parameters that need a gradient.
  // After its last committed step, or from the session's state_dict; 0: none.
  uint64_t resume_step = 0;
  OnShrink on_shrink = OnShrink::kAbort;
  // Of the state that it holds. Without an id: it holds none of this job, and
  // `committed` is what its checkpoint says.
  Lineage lineage = {};
  // Over the values of the parameters in that state. Empty: it says none, as an
  // older client.
  Digest parameters = {};
  // What it attached with before, if it attaches again; empty: it does not.
  Digest last_attach_id = {};
  Declared declared = {};
  Onset onset = {};
  // Its launch, if complete and without a state, is to begin a new lineage
  // although the last one may live.
  bool replace = false;
  // The newest generation that it was in, if it attaches again; 0: none.
  uint64_t last_generation = 0;
  // Of what it claims, by the secret of its seat there (seat_claim.h); made by
  // the agent's shell. Empty: it was told none.
  base::Secret proof = {};
  bool operator==(const Trainer&) const = default;
};

// An agent's data_address is "host:port" or this: nobody can dial it, so it
// dials all others.
inline constexpr absl::string_view kNobodyDials = "none";

// One agent of a generation with the trainers behind it.
struct Member {
  std::string agent;   // Name, unique in the cluster.
  Digest incarnation;  // Random, new for every process.
  std::string site;
  std::string data_address;        // "host:port" of its data plane.
  std::vector<uint32_t> ranks;     // Ascending.
  std::vector<Digest> attach_ids;  // Parallel to `ranks`.
  // Its trainers are told the secrets of their seats. For the coordinator
  // alone, and in no digest: agents of the release before do not know it.
  bool proves = false;
  bool operator==(const Member&) const = default;
};

// Who sends what to whom between the sites. Sites are numbered in the order of
// `Generation::sites`. Chunk c of a bucket goes along trees[c % trees.size()].
struct Plan {
  struct Tree {
    // parent[s] is the site above s; parent[root] == root.
    std::vector<uint16_t> parent;
    bool operator==(const Tree&) const = default;
  };
  // Two sites only: no root, both send E(their sum) and both add in site order.
  bool swap = false;
  std::vector<Tree> trees;  // Empty if and only if `swap`.
  // Buckets are cut so that trees, and members of a site, get as much of each.
  // Not set with an agent of the release before, which cuts them into chunks of
  // kChunkElements.
  bool even_chunks = false;
  bool operator==(const Plan&) const = default;
  Digest ComputeDigest() const;
};

// What travels from some step on, versioned. Versions grow within a group, also
// over generations.
struct Decision {
  uint64_t version = 0;
  Mode mode = Mode::kFull;
  Codec codec = Codec::kFp32;
  // Empty for FULL, and for TERNARY of all elements.
  Digest mask_digest;
  // What the masks' bits are of: the model's digest, whatever its buckets.
  Digest layout_digest;
  std::string reason;  // One sentence, the same in log, metric and API.
  bool operator==(const Decision&) const = default;
};

// One fixed membership of a group, numbered upwards.
struct Generation {
  GroupId group;
  uint64_t term = 0;  // Of the coordinator that formed it.
  uint64_t number = 0;
  uint32_t world_size = 0;
  std::string launch;
  uint64_t base_step = 0;          // The first step of this generation.
  std::vector<std::string> sites;  // Ascending; a site's index is its number.
  std::vector<Member>
      members;  // By (site, agent); an index is a member number.
  Plan plan;
  Decision decision;  // In force for base_step.
  OnShrink on_shrink = OnShrink::kAbort;
  // The rank whose state (parameters, optimizer, masks) the ranks in
  // `needs_state` take before anything else. Nothing: a new job.
  std::optional<uint32_t> donor;
  // Of its state: new without a donor, else with the donor's committed steps.
  Lineage lineage = {};
  std::vector<uint32_t> needs_state;  // Ascending; empty without a donor.
  Onset onset = {};                   // Of rank 0.
  bool operator==(const Generation&) const = default;
  // Over everything above except `decision.reason` and `Member::proves`.
  Digest ComputeDigest() const;
  int SiteOf(int member) const;                    // Index into `sites`.
  std::vector<int> MembersOfSite(int site) const;  // Ascending.
};

// A generation and the key that its members hold: who holds it is one of them.
struct GenerationKey {
  Digest generation;  // Generation::ComputeDigest().
  base::Secret key;
  bool operator==(const GenerationKey&) const = default;
};

// InvalidArgument: FULL with a mask set, COMPACTED without one, TERNARY with a
// codec that is not of n levels or another mode with one that is.
absl::Status CheckDecision(const Decision& decision);
// InvalidArgument: activate_every or pin_from over kMaxOnset, or a pin whose
// mode does not go with its codec.
absl::Status CheckOnset(const Onset& onset);

// Which way gradients go from the devices of one node to its agent.
struct DevicePath {
  // "torch", "device" or "nccl"; where trainers differ all of them: "cpu,
  // torch". It and `reason` are printable ASCII, at most kMaxMoved.
  std::string name;
  std::string reason;
  // Since the generation began: buckets that NCCL summed, and times that
  // gradients went by the host although it was asked for.
  uint64_t nccl_buckets = 0;
  uint64_t nccl_fallbacks = 0;

  bool operator==(const DevicePath&) const = default;
};

// InvalidArgument: not [a-z0-9]([-a-z0-9._]{0,61}[a-z0-9])?; `what` names the
// field.
absl::Status CheckName(absl::string_view what, absl::string_view name);
// InvalidArgument: over kMaxMoved, or not printable ASCII; `what` names the
// field.
absl::Status CheckMoved(absl::string_view what, absl::string_view moved);
// InvalidArgument: sizes over limits.h, an index out of range, a tree that is
// not one tree, ranks that are not exactly 0..world_size-1, no lineage, a
// donor that is no rank or needs the state itself.
absl::Status CheckGeneration(const Generation& generation);

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_TYPES_H_
