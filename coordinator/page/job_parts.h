// Parts of what the page gets of one job, as JSON.
//
// Pure functions. REQUIRES: an object is open.
#ifndef PACTRAIN_COORDINATOR_PAGE_JOB_PARTS_H_
#define PACTRAIN_COORDINATOR_PAGE_JOB_PARTS_H_

#include "coordinator/core/snapshot.h"
#include "coordinator/page/job_track.h"
#include "coordinator/page/json.h"

namespace pactrain::coordinator {

// "keep_of": what the masks keep of each parameter, who tells it, and whether
// it was told. The parameters only if that was after `after`: they are many and
// seldom change.
void WriteKeep(const GroupSnapshot& group, const JobTrack& track, double after,
               JsonWriter& json);

// "paths": [agent, which way gradients leave its GPUs, buckets that NCCL
// summed, fallbacks, why] of nodes with models on GPUs.
void WritePaths(const GroupSnapshot& group, JsonWriter& json);

// "failed": attempts in all; "failed_of": [cause, how many] of those that were.
void WriteFailed(const GroupSnapshot& group, JsonWriter& json);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_PAGE_JOB_PARTS_H_
