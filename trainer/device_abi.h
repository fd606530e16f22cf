/* The part of the C ABI for models on a GPU: kernels that pack a bucket there,
 * and the exchange of buckets that come packed. Part of trainer/pactrain.h.
 *
 * A bucket's way: pt_plan_bucket() says what of it travels; pt_cuda_compact()
 * packs that; a copy brings it to host memory; pt_submit_packed() takes it from
 * there and leaves the sums there; a copy and pt_cuda_expand_divide() bring the
 * mean back. Before the copy pt_reduce() may sum it with the node's other GPUs.
 */
#ifndef PACTRAIN_TRAINER_DEVICE_ABI_H_
#define PACTRAIN_TRAINER_DEVICE_ABI_H_

#include <stdint.h>

#include "trainer/membership_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pt_session pt_session;

/* What of a bucket travels in the open step, or in the one that it would open.
 */
typedef struct {
  int32_t packed; /* 1: what a mask keeps, or with image_bytes 0 all elements,
                     where NCCL sums them; 0: all elements, by pt_submit() */
  int32_t
      count_outside;    /* 1: pt_submit_packed() is to be told how many elements
                           outside the mask are not zero (NaN is not) */
  uint64_t kept;        /* elements; of the bucket's if not packed */
  uint64_t image_bytes; /* of pt_mask_image(); 0: there is none */
  pt_digest mask_digest;
} pt_plan;

/* Of a bucket whose gradients are summed (PT_SUM), by its number, elements and
 * layout. The plan holds until the bucket is submitted. */
int pt_plan_bucket(pt_session* session, uint32_t bucket, uint64_t elements,
                   pt_digest bucket_layout, pt_plan* out);

/* The mask of a bucket whose plan has one, as kernels read it: `image` has
 * room for image_bytes. It is the same as long as mask digest and layout are.
 * PT_INVALID_ARGUMENT: `plan` is not what pt_plan_bucket() says now. */
int pt_mask_image(pt_session* session, uint32_t bucket, uint64_t elements,
                  pt_digest bucket_layout, const pt_plan* plan, void* image);

/* Puts all elements of a bucket into its memory, in its dtype. 0: done; else
 * the session ends. It must call nothing of the session. */
typedef int (*pt_fill)(uint32_t bucket, void* arg);

/* How a bucket that was packed goes to the agent. */
enum pt_path {
  PT_PATH_HOST = 0,    /* each rank submits its own values */
  PT_PATH_LEADER = 1,  /* reduced: this rank submits the node's sum, */
  PT_PATH_FOLLOWER = 2 /* and this one none: `memory` may hold anything */
};

/* The node reduce: NCCL sums the kept elements of a bucket, `plan->kept` in
 * fp32 at the device's address `in`, which must be complete, over all trainers
 * of the model on this node, into `out`, on `stream` (a CUstream that nothing
 * else is enqueued on). Where they do not, and where NCCL fails, *path is
 * PT_PATH_HOST, `in` is as it was, and what is at `out` means nothing: neither
 * may be freed or used again once pt_node_report() says that it is not open any
 * more. Blocks until it is known, for a bounded time. To be called before
 * pt_submit_packed() of the bucket, by the thread that calls that.
 * PT_INTERNAL: the GPU does not come back from NCCL; the session is over. */
int pt_reduce(pt_session* session, uint32_t bucket, uint64_t elements,
              const pt_plan* plan, int dtype, pt_digest bucket_layout,
              uint64_t in, uint64_t out, void* stream, int32_t* path);

typedef struct {
  int32_t open;          /* buckets are summed by NCCL, once all are ready */
  int32_t pending;       /* it may open yet */
  uint64_t taken;        /* buckets that were */
  uint64_t by_host;      /* that were staged and were not */
  double nccl_seconds;   /* in NCCL */
  double staged_seconds; /* from being staged to the agent's go */
  char reason[512];      /* if not open: why; one line */
} pt_node;
int pt_node_report(pt_session* session, pt_node* out);

/* Tells the coordinator, for people, which way this rank's gradients go from
 * its device to the agent, and why: before the first step of each generation,
 * and when it changes. With PT_DEVICE_NCCL the agent knows whether NCCL sums
 * them. `reason`: at most 200 bytes of printable ASCII. */
enum pt_device {
  PT_DEVICE_CPU = 0,    /* also of who says nothing */
  PT_DEVICE_TORCH = 1,  /* whole buckets are copied to the host */
  PT_DEVICE_PACKED = 2, /* what masks keep is packed before */
  PT_DEVICE_NCCL = 3    /* and summed with the node's other GPUs */
};
int pt_device_path(pt_session* session, int32_t path, const char* reason);

/* Whether this process has an NCCL that is used: 0, or not. `text` gets one
 * line, cut to `bytes`: its version and file, or why not. Thread-safe. */
int pt_nccl_status(char* text, uint64_t bytes);

/* What was found when a bucket was packed, and done with it. */
typedef struct {
  uint64_t outside; /* elements outside the mask that are not zero */
  double squares;   /* of the kept elements, summed; unless PT_PATH_HOST */
  int32_t path;     /* as pt_reduce() said, or PT_PATH_HOST */
} pt_packed;

/* pt_submit() of a bucket that was packed as `plan` says. `memory` has room for
 * `elements` in fp32 and holds the kept ones so, one after the other, or what
 * the path says. It belongs to the library until pt_wait() returns. After PT_OK
 * it holds the sums of the kept elements in fp32, not divided; and where
 * pt_step says `dense` the mean of all elements in the bucket's dtype. For such
 * a step `fill` is called, from pt_wait() or from here. PT_INVALID_ARGUMENT:
 * also that the plan is another one now. */
int pt_submit_packed(pt_session* session, uint32_t bucket, uint64_t elements,
                     const pt_plan* plan, const pt_packed* packed, void* memory,
                     int dtype, pt_digest bucket_layout, int last,
                     const pt_digest* parameters, pt_fill fill, void* arg);

/* Whether this library's kernels can run on the GPU of the thread's current
 * context, or where it has none on all GPUs of this machine: 0, or why not
 * (trainer/cuda/driver.h has the numbers). `text` gets one line, cut to
 * `bytes`, which GPUs or why. Opens NVIDIA's driver, which no other call but
 * pt_cuda_open() does, and makes no context. Thread-safe. */
int pt_cuda_status(char* text, uint64_t bytes);

/* The kernels for one GPU: that of the context which is current in the calling
 * thread, and must be at each call. */
typedef struct pt_cuda pt_cuda;
/* PT_OK, or PT_REFUSED where they cannot be had; pt_last_error() says why. */
int pt_cuda_open(pt_cuda** out);
void pt_cuda_close(pt_cuda* cuda); /* NULL is fine */
/* Of what pt_cuda_compact() leaves in `totals`: for each block of the bucket,
 * in order, a double (the sum of the squares of what is kept) and a uint64_t
 * (how many elements outside the mask are not zero; 0 where that is not
 * counted). */
uint64_t pt_cuda_totals_bytes(uint64_t elements);
/* Both are enqueued on `stream` (a CUstream) and wait for nothing; addresses
 * are the device's. `image`: pt_mask_image(), copied there; 0: all elements are
 * kept. `packed` is in fp32, the rest in the bucket's dtype.
 * PT_INVALID_ARGUMENT: dtype, or 2^31 elements and more; PT_INTERNAL: the
 * driver failed, maybe with an earlier call; pt_last_error() says what. */
int pt_cuda_compact(const pt_cuda* cuda, uint64_t image, uint64_t elements,
                    int dtype, uint64_t in, int count_outside, uint64_t packed,
                    uint64_t totals, void* stream);
int pt_cuda_expand_divide(const pt_cuda* cuda, uint64_t image,
                          uint64_t elements, int dtype, uint64_t packed,
                          uint32_t world_size, uint64_t out, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* PACTRAIN_TRAINER_DEVICE_ABI_H_ */
