// What a trainer and the agent on its node say to each other over a Unix socket
// (SOCK_SEQPACKET: one message per packet). Fixed structs, same machine, same
// byte order; strings are NUL-terminated inside their array.
//
// Gradients never pass the socket: each trainer has a slot (shared memory it
// writes) and all trainers of a group on a node read one result region. Both
// are sealed memfds made by the agent; file descriptors go from agent to
// trainer only.
//
//   trainer                         agent
//   Hello                     ->
//                             <-    Waiting*            (while ranks miss)
//                             <-    Attached + 2 fds    or Failed
//   Submit*                   ->             (bucket by bucket, in pieces)
//                             <-    Resubmit*           (send all again, dense)
//                             <-    Written*            (results so far)
//                             <-    Committed           or Failed
//   Vote                      ->    (after a layout or mask change)
//   Keep                      ->    (once for each mask set, by one rank)
//   DevicePath                ->    (before the first step, and when it
//   changes) Detach                    ->
//
// Trainers of one model with a GPU each may sum a bucket among themselves, by
// NCCL, before it is submitted (a node reduce). The agent says with whom and
// when; it hears of each bucket that all hold it before any begins:
//
//                             <-    MakeId               (to the leader)
//   CollectiveId              ->
//                             <-    Open                 (to all)
//   Opened                    ->
//   Staged*                   ->             (the bucket is packed)
//                             <-    Go, or ByHost        (all have staged it)
//   Reduced, CollectiveFailed ->
//                             <-    Taken, or Close      (all have reduced it)
//
// After Taken all submit the bucket as reduced: the leader its sum, the others
// no data. After ByHost each submits its own values; after Close, too, and no
// bucket is staged any more.
//
// Instead of a Hello somebody may ask about the agent, who answers and hangs
// up:
//
//   Ask                       ->
//                             <-    About
#ifndef PACTRAIN_TRAINER_WIRE_H_
#define PACTRAIN_TRAINER_WIRE_H_

#include <cstddef>
#include <cstdint>

namespace pactrain::wire {

inline constexpr uint32_t kVersion = 12;
inline constexpr size_t kMaxMessage =
    8192;                                 // Bytes; larger packets are refused.
inline constexpr size_t kNameBytes = 64;  // 63 characters and the NUL.
inline constexpr size_t kTextBytes = 2048;
inline constexpr size_t kAddressBytes = 256;
inline constexpr size_t kMovedBytes = 201;  // PT_MOVED_BYTES and the NUL.
inline constexpr size_t kKeepParameters = 100;
inline constexpr size_t kSlotAlign = 64;  // Bytes; each bucket starts so.
inline constexpr size_t kCollectiveIdBytes = 128;  // ncclUniqueId
inline constexpr size_t kCollectiveTextBytes = 512;
inline constexpr size_t kSeatBytes = 32;  // protocol::StartGeneration::seats

enum class Kind : uint32_t {
  // trainer -> agent
  kHello = 1,
  kSubmit = 2,
  kVote = 3,
  kDetach = 4,
  kAsk = 5,
  kKeep = 6,
  kCollectiveId = 7,
  kOpened = 8,
  kStaged = 9,
  kReduced = 10,
  kCollectiveFailed = 11,
  kDevicePath = 12,
  // agent -> trainer
  kWaiting = 32,
  kAttached = 33,
  kResubmit = 34,
  kCommitted = 35,
  kFailed = 36,
  kAbout = 37,
  kWritten = 38,
  kMakeId = 39,
  kOpen = 40,
  kGo = 41,
  kTaken = 42,
  kByHost = 43,
  kClose = 44,
};

// Why a step or an attach failed. The same numbers as pt_code in pactrain.h.
enum class Code : uint32_t {
  kOk = 0,
  kInvalidArgument = 1,
  kStepNotApplied = 2,  // Nobody applied it: safe to redo the batch.
  kResyncRequired = 3,  // Outcome unknown or state differs: reload.
  kAgentUnresponsive = 4,
  kCoordinatorUnavailable = 5,
  kRefused = 6,  // The job cannot take this trainer as it is.
  kInternal = 7,
  kReplaced = 8,  // The job's state began anew without this one.
};

struct Digest128 {
  uint64_t hi;
  uint64_t lo;
};

struct Header {
  Kind kind;
  uint32_t bytes;  // Of the whole message, header included.
};

// Values of the enums are those of protocol/types.h.
struct Decision {
  uint64_t version;
  uint8_t mode;
  uint8_t codec;
  uint8_t pad[6];
  Digest128 mask_digest;
  Digest128 layout_digest;
  char reason[256];
};

struct Hello {
  Header header;
  uint32_t version;  // kVersion
  uint32_t rank;
  uint32_t world_size;
  uint32_t model;
  Digest128 attach_id;  // Random.
  Digest128 model_digest;
  uint64_t elements;  // Of all parameters that need a gradient.
  uint64_t
      slot_bytes;  // Wanted for the slot and for the result; equal on a node.
  // After its last committed step, or from its saved session; 0: none.
  uint64_t resume_step;
  // Of the state that it holds; zero: none of this job.
  Digest128 lineage;
  uint64_t committed;    // Gradient steps of that state, or of its checkpoint.
  Digest128 parameters;  // Over their values in that state; zero: none.
  Digest128 last_attach_id;  // If it attaches again; zero: it does not.
  uint64_t last_generation;  // The newest that it was in; 0: none.
  uint8_t seat[kSeatBytes];  // As Attached had it there; zero: none.
  // What it would vote before its first step; declared_elements 0: it says so
  // later.
  Digest128 mask_digest;
  Digest128 layout_digest;
  uint64_t kept_elements;
  uint64_t declared_elements;
  // protocol::Onset; equal on all ranks.
  uint64_t pin_from;
  uint32_t activate_every;
  uint8_t pin_mode;
  uint8_t pin_codec;
  uint8_t on_shrink;  // protocol::OnShrink
  uint8_t replace;    // 1: protocol::Trainer::replace
  // Of the NCCL that it would take part in node reduces with: 22907 is 2.29.7.
  // 0: it takes part in none.
  uint32_t nccl_version;
  uint32_t pad;
  char device[kNameBytes];  // With it, the GPU's UUID: "GPU-..." or "MIG-...",
  char gpu[kNameBytes];     // and its kind: "NVIDIA H100 80GB HBM3".
  char job[kNameBytes];
  char launch[kNameBytes];
  char site[kNameBytes];  // Empty: the agent's. Else it must be the agent's.
  char model_summary[256];
};

struct Waiting {
  Header header;
  char text[kTextBytes];
};

inline constexpr uint32_t kNoRank = ~uint32_t{0};

struct Attached {
  Header header;
  uint32_t rank;  // Unless on_shrink is 0 it may be another than was asked for,
  uint32_t world_size;  // and so may this.
  uint32_t member;      // The agent's member number.
  uint32_t donor;       // Whose state those take that need it; kNoRank: none.
  uint8_t needs_state;  // 1: this rank does.
  uint8_t pad[7];
  uint64_t generation;
  Digest128 lineage;   // Of the generation's state.
  uint64_t committed;  // Gradient steps in it, at the donor.
  uint64_t base_step;  // The first step to submit.
  uint64_t slot_bytes;
  uint64_t result_bytes;
  uint64_t step_deadline_ms;
  // The secret of this seat: with the next Hello the agent proves by it that
  // the trainer had it. Not to be logged; zero: there is none.
  uint8_t seat[kSeatBytes];
  Decision decision;
  char agent[kNameBytes];
  char site[kNameBytes];
};

// A bucket of a step, or the first part of it, is in the slot. Elements are
// fp32 for kSum (converted by the trainer) and raw 32-bit words for kXor.
//
// A bucket may come in pieces, so that the agent sends the first while the next
// is being written: its Submits are alike but for a growing `filled`, and what
// is below that is not written again. Only the last, with `filled` equal to
// `elements`, submits the bucket.
struct Submit {
  Header header;
  uint64_t step;
  uint32_t attempt;   // From 1; a Resubmit names the next one.
  uint32_t bucket;    // 0, 1, 2, ... within the step.
  uint64_t elements;  // In the slot: kept elements under a mask set.
  uint64_t filled;    // Of these, from the first on, how many lie there.
  uint64_t offset;    // Bytes from the start of the slot; the result lands at
                      // the same offset of the result region.
  Digest128 bucket_layout;  // Over the bucket's parameters.
  uint64_t decision_version;
  Digest128 mask_digest;  // Zero: all elements are sent.
  uint8_t mode;
  uint8_t dense;
  uint8_t op;
  uint8_t dtype;      // 1 float32, 2 bfloat16
  uint8_t last;       // The step has no more buckets.
  uint8_t violation;  // Of a whole bucket: it cannot be sent losslessly as the
                      // decision says, make this step dense.
  uint8_t reduced;    // 1: Taken; the leader's slot has the node's sum, and the
                      // others' have nothing of it.
  uint8_t pad;
  double squares;        // If reduced: of the elements of this rank, summed.
  Digest128 parameters;  // With `last`: digest of the parameters, or zero.
  char violation_text[256];
};

struct Vote {
  Header header;
  Digest128 layout_digest;
  Digest128 mask_digest;
  uint64_t kept_elements;
  uint64_t elements;
  uint32_t steps_unchanged;
  uint32_t settle_steps;
  uint8_t inside_decision;
  char moved[kMovedBytes];  // Printable; which parameters moved most.
  uint8_t pad[6];
};

// What a mask set keeps of each parameter, for people.
struct Keep {
  Header header;
  Digest128 mask_digest;
  uint64_t others_kept;  // Of the parameters that are not named, together.
  uint64_t others_elements;
  uint32_t others;
  uint32_t count;  // Of those that are.
  struct Parameter {
    uint64_t kept;
    uint64_t elements;
    char name[kNameBytes];  // Printable.
  } parameters[kKeepParameters];
};

// Which way gradients go from this rank's device to the agent, for people. Who
// says nothing is on a CPU.
struct DevicePath {
  Header header;
  uint8_t path;              // 0 none: a CPU; 1 torch, 2 device, 3 nccl
  char reason[kMovedBytes];  // Printable.
  uint8_t pad[6];
};

struct Detach {
  Header header;
};

struct Ask {
  Header header;
};

struct About {
  Header header;
  char version[kNameBytes];  // Of the agent's software.
  char agent[kNameBytes];
  char site[kNameBytes];
  char listen[kAddressBytes];        // What its data port is bound to.
  char data_address[kAddressBytes];  // What others are told: or "none".
  char coordinator[kAddressBytes];
  uint8_t connected;  // With the coordinator.
  uint8_t pad[7];
};

// Nothing was applied; send every bucket of the step again with this attempt,
// dense: all elements, fp32. Buckets not submitted yet follow dense, too.
struct Resubmit {
  Header header;
  uint64_t step;
  uint32_t attempt;
  uint32_t pad;
  char text[kTextBytes];
};

// What this attempt will have as results if it is committed, as far as they are
// in the result region: all of the buckets before `bucket` and the first
// `elements` of that one. May be read at once, but not used before Committed
// names the same attempt; within an attempt it only grows. Not everybody is
// told, and nobody has to read before the commit.
struct Written {
  Header header;
  uint64_t step;
  uint32_t attempt;
  uint32_t bucket;
  uint64_t elements;  // In the slot's order, as Submit::filled.
};

struct Committed {
  Header header;
  uint64_t step;
  uint32_t attempt;
  uint32_t world_size;  // Divide the sums by this.
  uint64_t sent_bytes;  // By this agent to other sites for this step.
  uint64_t received_bytes;
  uint64_t dense_bytes;  // What FULL had sent to other sites, in fp32.
  double link_rate;      // Bytes per second to other sites at the best rates of
                         // this agent's links so far; 0: not measured yet.
  Decision next;         // In force for the next step.
};

// `final` false: the step was not applied, the next one may be submitted.
// True: this attach is over.
struct Failed {
  Header header;
  uint64_t step;  // ~0: not about a step.
  Code code;
  uint8_t final;
  uint8_t may_rejoin;  // With `final`: attaching again is the way to go on.
  uint8_t pad[2];
  char text[kTextBytes];  // Its last line says what to do.
};

// Of one communicator; the agent numbers them, from 1, in each generation. What
// names another than the one that is open is ignored.
using CollectiveEpoch = uint64_t;

struct MakeId {
  Header header;
  CollectiveEpoch epoch;
};

struct CollectiveId {
  Header header;
  CollectiveEpoch epoch;
  uint8_t id[kCollectiveIdBytes];
};

struct Open {
  Header header;
  CollectiveEpoch epoch;
  uint32_t rank;   // In the communicator; the leader is 0.
  uint32_t ranks;  // >= 2
  uint8_t id[kCollectiveIdBytes];
};

struct Opened {
  Header header;
  CollectiveEpoch epoch;
};

// This rank holds the bucket packed, on its GPU, as Submit would describe it.
struct Staged {
  Header header;
  CollectiveEpoch epoch;
  uint64_t step;
  uint32_t attempt;
  uint32_t bucket;
  uint64_t elements;  // Kept; in fp32.
  uint64_t decision_version;
  Digest128 bucket_layout;
  Digest128 mask_digest;
  uint32_t dtype;  // As Submit::dtype.
  uint32_t pad;
};

// Reduced, Go, Taken, ByHost: the kind says which. A ByHost may name epoch 0.
struct BucketWord {
  Header header;
  CollectiveEpoch epoch;
  uint64_t step;
  uint32_t attempt;
  uint32_t bucket;
};

struct CollectiveFailed {
  Header header;
  CollectiveEpoch epoch;
  char text[kCollectiveTextBytes];  // One line.
};

// The communicator is over, or there is none: what is not taken goes by the
// host.
struct Close {
  Header header;
  CollectiveEpoch epoch;
  char text[kCollectiveTextBytes];  // Why; one line.
};

}  // namespace pactrain::wire

#endif  // PACTRAIN_TRAINER_WIRE_H_
