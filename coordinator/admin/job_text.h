// What pactrain-admin says of jobs, in the words of the glossary.
//
// Pure functions.
#ifndef PACTRAIN_COORDINATOR_ADMIN_JOB_TEXT_H_
#define PACTRAIN_COORDINATOR_ADMIN_JOB_TEXT_H_

#include <string>

#include "pactrain/v1/admin.pb.h"

namespace pactrain::coordinator {

// A line for each job below a line of titles.
std::string JobsTable(const v1::ListJobsResponse& jobs);
// One job in full.
std::string JobDetails(const v1::JobState& job);
// Which way each job's sums travel.
std::string PlanTable(const v1::ListJobsResponse& jobs);
// What one job's masks keep, and how far they have settled.
std::string MasksText(const v1::JobState& job);
// Its newest decisions; with `why` their reasons, and why what travels now
// does.
std::string DecisionsText(const v1::JobState& job, bool why);
// One job in one line.
std::string JobLine(const v1::JobState& job);
// What was asked and what came of it, in two or three lines.
std::string PinText(const v1::JobState& job);

// Changes with what is worth a line of `watch`: not with steps and other
// figures.
std::string NewsOf(const v1::JobState& job);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_JOB_TEXT_H_
