/* The part of the C ABI (trainer/pactrain.h) that trainer/core takes and gives:
 * a bucket's pieces, how a step went, what is looked at of weights; and by
 * which a client keeps its rank in a job whose ranks come and go. All decisions
 * about that are made in trainer/core/membership.h; a client does what it is
 * told and says what came of it:
 *
 *   pt_membership_begin(membership, &mine, &result, now, &todo);
 *   while (todo.action != PT_DONE && todo.action != PT_FAIL) {
 *     ...                                        // What todo.action says.
 *     pt_membership_next(membership, &result, now, &todo);
 *   }
 */
#ifndef PACTRAIN_TRAINER_MEMBERSHIP_ABI_H_
#define PACTRAIN_TRAINER_MEMBERSHIP_ABI_H_

#include <stdint.h>

typedef struct {
  uint64_t hi, lo;
} pt_digest; /* all zero: none */

/* A piece of a bucket's elements. */
typedef struct {
  const void* data;
  uint64_t elements;
} pt_part;

typedef struct {
  uint64_t version;
  int32_t mode, codec; /* pt_mode, pt_codec */
  pt_digest mask_digest, layout_digest;
  char reason[256];
} pt_decision;

typedef struct {
  uint64_t step;
  uint32_t attempts; /* 1: went through at once */
  uint32_t world_size;
  int32_t dense; /* 1: all elements in fp32 although the decision said
                    otherwise */
  int32_t mode;  /* of the buckets of this step; FULL if any was */
  int32_t codec;
  uint64_t sent_bytes, received_bytes; /* by this node's agent, to and from
                                          other sites */
  uint64_t dense_bytes;                /* what FULL had sent there, in fp32 */
  double link_rate; /* bytes per second to other sites at the best rates that
                       the agent has measured so far; 0: none yet */
  uint64_t elements,
      submitted_elements; /* of this rank's buckets; after compaction */
  double wait_seconds;    /* from the last submit to the commit */
  pt_decision next;       /* in force for the next step */
} pt_step;

/* Elements [first, first + elements) of a parameter. */
typedef struct {
  uint32_t parameter;
  uint64_t first, elements;
} pt_range;

/* Who can read each other's optimizer and script state. */
enum pt_kind { PT_PYTHON = 0, PT_CPP = 1 };

/* No message before a state is larger: the least size of a slot. */
#define PT_STATE_MESSAGE_BYTES 1088u

typedef struct {
  int32_t kind;               /* pt_kind */
  int32_t agent_returns;      /* 0: when the agent is gone, so is the job */
  uint64_t piece_bytes;       /* equal on all ranks, PT_STATE_MESSAGE_BYTES or
                                 more, a multiple of 4 */
  uint32_t attach_timeout_ms; /* for all tries without a committed step */
} pt_membership_options;

/* How far a rank is, in what is counted in steps; so are the ages. */
typedef struct {
  uint64_t committed; /* gradient steps of the job */
  uint64_t buffer_sync_age, parameter_check_age;
} pt_progress;

/* What a rank has before it enters a generation. */
typedef struct {
  int32_t newcomer; /* 1: it has no state yet, and is attached */
  pt_progress progress;
  pt_digest parameters;         /* over their values */
  const char* settings;         /* "gse 1\nsync_masks 1\n...", equal on all
                                   ranks, 511 bytes at most */
  const char* shared;           /* names and classes of what the script shares;
                                   equal on all ranks of a kind */
  uint32_t unshared_optimizers; /* that have moved the parameters */
} pt_mine;

enum pt_action {
  PT_ATTACH = 1, /* again, with `lineage`, `committed`, `parameters` and `step`
                    (resume_step) of the state that this rank holds, for `ms` at
                    most */
  PT_SLEEP,      /* for `ms` */
  PT_EXCHANGE,   /* the XOR of all ranks' `words` 32-bit words at `in` into
                    `out`, a step of its own with layout `layout` */
  PT_GIVE,       /* this rank's state: `common` and `own` of the result */
  PT_DONE,       /* in a generation, as far as all others: see the results */
  PT_FAIL        /* with `code` and `text`; the session ends */
};

typedef struct {
  int32_t action;
  const char* tell; /* for the log; NULL: nothing new */
  int32_t warn;     /* 1: it matters at every rank */
  pt_digest lineage, parameters;
  uint64_t committed, step;
  uint32_t ms;
  const void* in;
  void* out;
  uint64_t words;
  pt_digest layout;
  /* PT_DONE: how far the donor was. With `kept` 0 the others have made the step
   * that failed: this rank's gradients are void. If `common` is not NULL this
   * rank takes a state, which lies there until pt_membership_forget(), and with
   * which its parameters have the digest `parameters`. */
  pt_progress progress;
  int32_t kept;
  const void* common;
  const void* own;
  uint64_t common_bytes, own_bytes;
  /* PT_FAIL: a pt_code. With `leaves` 1 it leaves the job for good first
   * (pt_detach()): others need not wait for it. */
  int32_t code, leaves;
  const char* text;
} pt_todo;

/* What came of an action: code PT_OK, or the error; and where the session is
 * now. Of PT_GIVE also the state, which stays valid until the next PT_DONE,
 * PT_FAIL or PT_ATTACH. `common` (parameters, buffers, masks) has one form in
 * all languages, `own` (optimizers, the script's place) one in each. */
typedef struct {
  int32_t code, final, may_rejoin;
  const char* text;
  uint64_t generation, resume_step;
  pt_digest lineage;
  uint32_t rank, world_size, donor;
  int32_t needs_state;
  const void* common;
  const void* own;
  uint64_t common_bytes, own_bytes;
} pt_result;

#endif /* PACTRAIN_TRAINER_MEMBERSHIP_ABI_H_ */
