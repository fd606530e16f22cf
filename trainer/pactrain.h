/* C ABI of the trainer library: how a training process hands gradient buckets
 * to the agent on its node and gets the mean over all ranks back. Used by the
 * Python client (ctypes) and by C++ trainers. No torch, no gRPC.
 *
 * A step: pt_submit() for bucket 0, 1, ... (the last one marked), while one
 * other thread sits in pt_wait(); when it returns PT_OK, every bucket's mean is
 * where pt_submit() was told to put it. Either every rank of the job gets
 * bit-identical results for all buckets of a step, or every rank gets an error
 * and nothing was applied.
 *
 * Threads: pt_submit() from one thread and pt_wait() from another may run at
 * the same time; all other calls one at a time per session. Not fork-safe: a
 * forked child must not use a session.
 *
 * Every function that returns int returns a pt_code; on any but PT_OK
 * pt_error_text() of the session (or pt_last_error() where there is none) says
 * why, in words whose last line says what to do.
 */
#ifndef PACTRAIN_TRAINER_PACTRAIN_H_
#define PACTRAIN_TRAINER_PACTRAIN_H_

#include <stdint.h>

#include "trainer/device_abi.h"
#include "trainer/membership_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PT_ABI_VERSION 13

enum pt_code {
  PT_OK = 0,
  PT_INVALID_ARGUMENT = 1,
  PT_STEP_NOT_APPLIED = 2, /* nobody applied it: the batch can be redone */
  PT_RESYNC_REQUIRED = 3,  /* outcome unknown, or ranks differ: reload */
  PT_AGENT_UNRESPONSIVE = 4,
  PT_COORDINATOR_UNAVAILABLE = 5,
  PT_REFUSED = 6, /* the job cannot take this trainer as it is */
  PT_INTERNAL = 7,
  PT_REPLACED = 8 /* the job began anew without this rank: its state is of no
                     use there any more, and nobody has taken it */
};

enum pt_mode { PT_FULL = 1, PT_COMPACTED = 2, PT_TERNARY = 3 };
enum pt_codec {
  PT_CODEC_FP32 = 1,
  PT_CODEC_BF16 = 2,
  PT_CODEC_LEVELS3 = 3, /* n levels with a scale per 256 elements */
  PT_CODEC_LEVELS5 = 4,
  PT_CODEC_LEVELS7 = 5,
  PT_CODEC_LEVELS15 = 6,
  PT_CODEC_LEVELS31 = 7
};
enum pt_dtype { PT_FLOAT32 = 1, PT_BFLOAT16 = 2 };
enum pt_op { PT_SUM = 1, PT_XOR = 2 };
/* What the job does when its ranks become fewer: end for good, wait for as many
 * as before, or go on with those that are left. */
enum pt_on_shrink { PT_ABORT = 0, PT_PAUSE = 1, PT_CONTINUE = 2 };
#define PT_NO_RANK 0xFFFFFFFFu

typedef struct {
  const char* agent; /* "unix:/run/pactrain/agent.sock" */
  const char* job;
  const char* site;   /* NULL or "": the agent's */
  const char* launch; /* equal on all ranks of one launch */
  uint32_t rank, world_size, model;
  pt_digest model_digest; /* over names, shapes and dtypes of the parameters */
  const char* model_summary; /* for error messages of other ranks */
  uint64_t elements;         /* of all parameters that need a gradient, >= 1 */
  uint64_t slot_bytes;  /* 0: enough for all elements in any bucket layout */
  uint64_t resume_step; /* after the last committed step, or from a saved
                           session; 0: none */
  uint32_t attach_timeout_ms; /* until all ranks are there */
  int gse;                    /* 1: gradients outside the mask are dropped;
                                 0: one makes the step dense */
  int32_t on_shrink;          /* pt_on_shrink; equal on all ranks */
  /* Of the state that this rank holds: pt_lineage() of the session in which it
   * got it, zero for none of this job; and the gradient steps in that state, or
   * in its checkpoint; and the digest over its parameters' values, which the
   * coordinator holds against what others of this step say. */
  pt_digest lineage;
  uint64_t committed;
  pt_digest parameters;
  int32_t replace; /* 1: a complete launch that holds no state begins anew,
                      although ranks with the job's state may live; those end
                      with PT_REPLACED. A process says it with the first attach
                      of a model of the job that succeeds, and not again */
  const pt_session* previous; /* the session, which is over, whose place this
                                 one takes; to be closed afterwards */
  /* What this rank would vote before its first step: where all say the same,
   * the job begins with it. declared_elements 0: it votes later. */
  pt_digest mask_digest, layout_digest;
  uint64_t kept_elements, declared_elements;
  /* Steps are those of gradients, from 1 in each generation; equal on all
   * ranks. Other masks come in force with a multiple of activate_every (0: with
   * any step), for which a step waits a little. With step pin_from pin_mode and
   * pin_codec come in force, and all is exact before; pin_from 0: no pin. */
  uint32_t activate_every;
  int32_t pin_mode, pin_codec;
  uint64_t pin_from;
  /* 1: it takes part in node reduces (device_abi.h), with the GPU of the
   * context that is current in the calling thread. PT_REFUSED where NCCL cannot
   * be had. */
  int32_t nccl;
} pt_attach_options;

uint32_t pt_abi_version(void);
const char* pt_version(void); /* of the software: "0.1.0" */
/* XXH3-128 of a byte range: for masks, layouts and parameters. */
pt_digest pt_digest_of(const void* data, uint64_t bytes);
/* What agents make of values between sites in TERNARY steps, with no agent: for
 * twins of an exchange, and to time it. `levels`: 3, 5, 7, 15 or 31. `decoded`
 * gets what all ranks use of the `elements` <= 65,536 values, *bytes what they
 * take on a link in the shorter form. `key` and `first_element`, a multiple of
 * 16, choose the dither (kernels/levels.h). PT_INVALID_ARGUMENT: one of them is
 * out of range; pt_last_error() says which. Thread-safe. */
int pt_code_levels(uint32_t levels, uint64_t key, uint32_t first_element,
                   const float* in, uint32_t elements, float* decoded,
                   uint32_t* bytes);
const char* pt_last_error(void); /* of this thread's last failed
                                    pt_attach, pt_code_levels
                                    or pt_cuda_* */
/* 1: its cause was a change of membership or a lost agent: try again. */
int pt_last_may_rejoin(void);

typedef void (*pt_on_waiting)(const char* text, void* arg);

/* Connects to the agent and waits until all ranks of the job are there.
 * PT_INVALID_ARGUMENT, PT_AGENT_UNRESPONSIVE (no agent at the address, or it
 * went away), PT_COORDINATOR_UNAVAILABLE (timeout, with what was waited for),
 * PT_REFUSED (another model, duplicate rank, wrong site, ...), PT_REPLACED. On
 * success *out
 * is to be freed by pt_close(). `on_waiting` may be NULL; it is called from
 * this thread with what is waited for whenever that changes. */
int pt_attach(const pt_attach_options* options, pt_session** out,
              pt_on_waiting on_waiting, void* arg);

/* Frees everything; while the session is not over it tells the agent first, as
 * pt_detach(). Safe after any error; NULL is fine. */
void pt_close(pt_session* session);

/* Hands the session over, to be closed when this process exits: with status 0
 * as pt_detach() and pt_close(); with another one nothing is said, and the
 * others see a rank that is lost. After it the session is not to be used. */
void pt_close_at_exit(pt_session* session);

/* Says that this rank leaves for good, also where pt_may_rejoin(): the others
 * need not wait for it. To be followed by pt_close(). */
void pt_detach(pt_session* session);

/* Frees everything without a word to the agent, as if the process had died: the
 * rank is lost, and unless on_shrink is PT_ABORT others wait for it. */
void pt_abandon(pt_session* session);

uint64_t pt_generation(const pt_session* session);
/* Of the generation's state, and the gradient steps that its donor has
 * committed in it; without a donor those of the checkpoint. */
pt_digest pt_lineage(const pt_session* session);
uint64_t pt_lineage_committed(const pt_session* session);
/* Of 0 .. pt_world_size() - 1. Unless on_shrink is PT_ABORT both may differ
 * from what was asked for. */
uint32_t pt_rank(const pt_session* session);
/* The rank whose state (parameters, optimizer, masks) those take that need it,
 * before anything else, by steps in which all ranks take part; PT_NO_RANK: a
 * new job. */
uint32_t pt_donor(const pt_session* session);
int pt_needs_state(const pt_session* session); /* 1: this rank does */
uint64_t pt_next_step(const pt_session* session);
uint32_t pt_world_size(const pt_session* session);
const char* pt_site(const pt_session* session);
const char* pt_agent_name(const pt_session* session);
uint64_t pt_step_deadline_ms(const pt_session* session);
void pt_current_decision(const pt_session* session, pt_decision* out);
const char* pt_error_text(const pt_session* session);

/* Gives the bitmaps of one mask set for `buckets` buckets from `first_bucket`
 * on, before they are submitted, also while a step is open. The b-th of them
 * has `elements[b]` elements; bit i of bitmaps[b] (least significant first,
 * byte i / 8) is 1 where element i is kept. Copied. A session holds the newest
 * four sets, of each bucket the newest layout; under another mask set a bucket
 * is sent FULL. PT_INVALID_ARGUMENT: counts over the limits. */
int pt_set_masks(pt_session* session, pt_digest mask_digest,
                 uint32_t first_bucket, uint32_t buckets,
                 const pt_digest* bucket_layouts, const uint64_t* elements,
                 const uint8_t* const* bitmaps);

/* Tells the coordinator what this rank's mask set is. `inside_decision` 0 makes
 * every step dense until a decision for this mask set is in force. `moved`
 * names the parameters whose masks moved most in its last change, for people:
 * at most PT_MOVED_BYTES bytes of printable ASCII; NULL or "": not known. It
 * need not be said again while the mask set stays the same. */
#define PT_MOVED_BYTES 200
int pt_vote(pt_session* session, pt_digest layout_digest, pt_digest mask_digest,
            uint32_t steps_unchanged, uint32_t settle_steps,
            int inside_decision, uint64_t kept_elements, uint64_t elements,
            const char* moved);

/* Tells the coordinator, for people, what this mask set keeps of each of
 * `count` parameters: kept[i] of elements[i] of names[i], which may hold any
 * bytes. The largest 100 keep their names. To be said once for each mask set
 * that settled, and by rank 0 alone. */
int pt_keep(pt_session* session, pt_digest mask_digest, uint32_t count,
            const char* const* names, const uint64_t* kept,
            const uint64_t* elements);

/* While `reason` is not NULL every step is made dense, with this text as the
 * reason. */
void pt_require_dense(pt_session* session, const char* reason);

/* Submits bucket `bucket` (0, 1, 2, ... in order) of the open step; bucket 0
 * opens it. The bucket's elements are those of `parts`, one after the other.
 * `out` has room for as many in the same dtype and gets the mean (PT_SUM: sum /
 * world_size; PT_XOR: the bits), zeros outside the mask: it is written while
 * pt_wait() runs and complete when that returns PT_OK. After an error it may
 * hold anything, unless it overlaps the parts: then it is written after the
 * commit only, so that they are as they were. It overlaps no other bucket's
 * parts or `out`. Until pt_wait() returns, the
 * memory of both must stay valid, the parts' unchanged, and `out` belongs to
 * the library. With `last`, `parameters` may carry a digest of the parameters
 * (else NULL) that must be equal on all ranks. Returns at once: copying (or
 * compacting) is all it does. An error while buckets are still to come ends the
 * step: pt_wait() returns it, too. */
int pt_submit(pt_session* session, uint32_t bucket, const pt_part* parts,
              uint32_t part_count, void* out, int dtype, int op,
              pt_digest bucket_layout, int last, const pt_digest* parameters);

/* Waits until the open step is committed (PT_OK) or has failed. From the step's
 * last pt_submit() on, the step deadline + 2 s without a word from the agent
 * end it. While another rank lives and has not submitted, the agent has such
 * words, until its straggler timeout (30 min by default) ends the step. May be
 * called as soon as bucket 0 is submitted. After PT_STEP_NOT_APPLIED the next
 * step may be submitted unless pt_is_final(); after the other errors the
 * session is over. */
int pt_wait(pt_session* session, pt_step* out);
int pt_is_final(const pt_session* session);
/* 1: the session is over, and attaching again is the way to go on: the ranks
 * have changed, or the agent is gone. Say the lineage, the committed gradient
 * steps and the parameters' digest of the state that this rank holds, and the
 * step after its last committed one (base step: none) as resume_step. */
int pt_may_rejoin(const pt_session* session);

/* A rank's membership in its job; see trainer/membership_abi.h. It needs no
 * session. `now_ms` is monotonic. After memory has run out PT_FAIL. */
typedef struct pt_membership pt_membership;
pt_membership* pt_membership_new(const pt_membership_options* options);
void pt_membership_free(pt_membership* membership);
void pt_membership_begin(pt_membership* membership, const pt_mine* mine,
                         const pt_result* there, uint64_t now_ms, pt_todo* out);
void pt_membership_next(pt_membership* membership, const pt_result* result,
                        uint64_t now_ms, pt_todo* out);
/* The state of PT_DONE is taken: frees its memory. */
void pt_membership_forget(pt_membership* membership);
/* 1: a session of an elastic job that is over with this error may be followed
 * by another one: pt_membership_begin(). */
int pt_may_go_on(int code, int final, int may_rejoin, int agent_returns);
/* Which of two ranks' settings ("gse 1\nsync_masks 1\n...", equal on all ranks)
 * differ, for people, with both values and what to do; "": none. Valid until
 * this thread's next call. */
const char* pt_settings_difference(const char* settings, uint32_t rank,
                                   const char* other, uint32_t other_rank);
/* The Mask Tracker: which weights are zero, and for how many steps those have
 * been the same ones. It needs no session. A step begins with looks at what is
 * due, and ends with pt_tracker_end_step() when it is committed; a step that
 * failed is begun again. Weights are to be equal on all ranks when they are
 * looked at. Then ranks find the same at the same step, and each votes for its
 * own masks: at attach no masks are exchanged or declared. One thread
 * at a time. trainer/core/mask_tracker.h has the rules. */
typedef struct pt_tracker pt_tracker;

typedef struct {
  uint64_t steps;
  uint64_t steps_unchanged; /* since the last change that was seen */
  uint64_t settle_steps;
  uint64_t last_change; /* the step, from 1, that saw it; 0: none */
} pt_tracked;

/* NULL: a count is out of range (settle_steps from 1 on, elements in all below
 * 2^31), or out of memory. Names are copied, for pt_tracker_moved(). */
pt_tracker* pt_tracker_new(uint32_t parameters, const char* const* names,
                           const uint64_t* elements, uint32_t settle_steps);
void pt_tracker_free(pt_tracker* tracker); /* NULL is fine. */
/* How many ranges this step has to look at: at first everything, then a part
 * in each step. */
uint32_t pt_tracker_due(const pt_tracker* tracker);
/* REQUIRES: index < pt_tracker_due(). `values` of a look are those of the
 * range, one after the other in any order that stays the same. Returns how many
 * elements moved. */
pt_range pt_tracker_range(const pt_tracker* tracker, uint32_t index);
uint64_t pt_tracker_look(pt_tracker* tracker, uint32_t index,
                         const float* values);
void pt_tracker_end_step(pt_tracker* tracker);
/* In a new generation: everything is looked at again, and counted from there.
 */
void pt_tracker_restart(pt_tracker* tracker);
pt_tracked pt_tracker_state(const pt_tracker* tracker);
/* A bit for each element of a parameter, as for pt_set_masks(): 1 where it was
 * not zero. `bits` gets 8 bytes for each 64 elements begun. */
void pt_tracker_bits(const pt_tracker* tracker, uint32_t parameter,
                     uint8_t* bits);
/* Elements of a parameter that went or came back, in all. */
uint64_t pt_tracker_moves(const pt_tracker* tracker, uint32_t parameter);
/* What moved since the masks were settled last, most first, in at most 200
 * bytes; "": nothing. Valid until the next call. */
const char* pt_tracker_moved(pt_tracker* tracker);

#ifdef __cplusplus
}
#endif

#endif /* PACTRAIN_TRAINER_PACTRAIN_H_ */
