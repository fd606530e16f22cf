#include "coordinator/admin/job_text.h"

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/counted.h"
#include "base/utc_text.h"
#include "coordinator/admin/table.h"
#include "protocol/types.h"

namespace pactrain::coordinator {
namespace {

std::string Name(const v1::Group& group) {
  return protocol::GroupId{group.job(), static_cast<uint16_t>(group.model())}
      .ToString();
}

// Of a decision or a pin: "TERNARY 7 levels".
template <typename T>
std::string ModeAndCodec(const T& what) {
  return absl::StrCat(
      protocol::ModeName(static_cast<protocol::Mode>(what.mode())), " ",
      protocol::CodecName(static_cast<protocol::Codec>(what.codec())));
}

std::string PinOf(const v1::JobState& job) {
  return job.has_pin() ? ModeAndCodec(job.pin()) : "-";
}

std::string InForce(const v1::JobState& job) {
  return job.has_decision() ? ModeAndCodec(job.decision()) : "-";
}

std::string StepOf(const v1::JobState& job) {
  return job.committed_count() > 0 ? absl::StrCat(job.committed_step()) : "-";
}

std::string OnShrinkText(const v1::Generation& generation) {
  switch (generation.on_shrink()) {
    case v1::ON_SHRINK_PAUSE:
      return "; ranks come and go, pauses while some are missing";
    case v1::ON_SHRINK_CONTINUE:
      return "; ranks come and go, goes on with those that are there";
    default:
      return "";
  }
}

std::string MembersTable(const v1::Generation& generation) {
  std::vector<Row> rows = {{"AGENT", "SITE", "ADDRESS", "RANKS"}};
  for (const v1::Member& member : generation.members()) {
    rows.push_back({member.agent(), member.site(), member.data_address(),
                    absl::StrJoin(member.ranks(), ", ")});
  }
  return Table(rows);
}

// "" where all models are on CPUs.
std::string PathsTable(const v1::JobState& job) {
  std::vector<Row> rows = {
      {"AGENT", "GRADIENTS BY", "SUMMED BY NCCL", "FALLBACKS", "WHY"}};
  for (const v1::NodePath& node : job.node_paths()) {
    rows.push_back({node.agent(), node.path().name(),
                    absl::StrCat(node.path().nccl_buckets()),
                    absl::StrCat(node.path().nccl_fallbacks()),
                    node.path().reason()});
  }
  return rows.size() == 1 ? "" : absl::StrCat("\n", Table(rows));
}

// "COMPACTED fp32, version 5: why it was made".
std::string Made(const v1::Decision& decision) {
  return absl::StrCat(ModeAndCodec(decision), ", version ", decision.version(),
                      ": ", decision.reason());
}

std::string MasksOf(const v1::JobState& job) {
  const v1::MaskProgress& masks = job.masks();
  const std::string steps = base::Counted(masks.settle_steps(), "step");
  if (masks.steps_unchanged() >= masks.settle_steps()) {
    return absl::StrCat("settled: unchanged for ", steps, " at all ranks");
  }
  return absl::StrCat("unchanged for ", masks.steps_unchanged(), " of ", steps,
                      " at rank ", masks.rank(), ", the least of all ranks");
}

std::string LastChangeOf(const v1::MaskProgress& masks) {
  if (!masks.has_changed_step()) return "not in this generation";
  return absl::StrCat("last before step ", masks.changed_step(),
                      masks.moved().empty() ? "" : ": ", masks.moved());
}

void AddMasks(const v1::JobState& job, std::vector<Row>& rows) {
  if (job.keep() > 0) {
    rows.push_back({"keep", absl::StrFormat("%.1f %%", 100 * job.keep())});
  }
  if (!job.has_masks()) return;
  rows.push_back({"masks", MasksOf(job)});
  rows.push_back({"moved", LastChangeOf(job.masks())});
  rows.push_back({"compacted", job.has_first_compacted_step()
                                   ? absl::StrCat("first at step ",
                                                  job.first_compacted_step())
                                   : "not yet"});
}

// Who should have told what each parameter keeps, and has not.
std::string NotTold(const v1::JobState& job) {
  for (const v1::Member& member : job.generation().members()) {
    if (std::count(member.ranks().begin(), member.ranks().end(), 0u) == 0) {
      continue;
    }
    return absl::StrCat("not told by rank 0 at agent ", member.agent(),
                        ": its masks have not settled, or its library or "
                        "agent is older");
  }
  return "not told";
}

std::string KeepTable(const v1::KeepByParameter& keep) {
  std::vector<Row> rows = {{"PARAMETER", "KEPT", "OF", "KEEP"}};
  const auto add = [&](std::string name, uint64_t kept, uint64_t elements) {
    const double share = elements == 0 ? 1
                                       : static_cast<double>(kept) /
                                             static_cast<double>(elements);
    rows.push_back({std::move(name), absl::StrCat(kept), absl::StrCat(elements),
                    absl::StrFormat("%.1f %%", 100 * share)});
  };
  for (const auto& p : keep.parameters()) add(p.name(), p.kept(), p.elements());
  if (keep.others() > 0) {
    add(absl::StrCat("(", keep.others(), " others)"), keep.others_kept(),
        keep.others_elements());
  }
  return Table(rows);
}

std::string SavedOf(const v1::JobAccount& account) {
  const std::string time =
      !account.has_saved_seconds()
          ? "time not known (no FULL step was measured, and links show no rate)"
      : account.saved_at_least()
          ? absl::StrFormat(
                "at least %.1f s (this generation's part by links' rates, if "
                "they show any; no FULL step of it was measured)",
                account.saved_seconds())
          : absl::StrFormat("%.1f s", account.saved_seconds());
  return absl::StrFormat(
      "%s, and %.1f of %.1f MB between sites, since %s; a coordinator that is "
      "started again counts anew",
      time, (account.dense_bytes() - account.sent_bytes()) * 1e-6,
      account.dense_bytes() * 1e-6,
      base::UtcText(absl::UnixEpoch() +
                    absl::Seconds(account.since_unix_seconds())));
}

std::string RiskOf(const v1::JobState& job) {
  if (!job.has_risk()) return "not measured";
  return absl::StrFormat("%.3f of the batch, %.3f of it by clipping",
                         job.risk(), job.risk_clip());
}

}  // namespace

std::string JobsTable(const v1::ListJobsResponse& jobs) {
  if (jobs.jobs().empty()) return "no jobs are known\n";
  std::vector<Row> rows = {
      {"JOB", "STATE", "GENERATION", "MEMBERS", "STEP", "IN FORCE", "PIN"}};
  for (const v1::JobState& job : jobs.jobs()) {
    const v1::Generation& generation = job.generation();
    const bool formed = job.has_generation();
    rows.push_back(
        {Name(job.group()), job.state(),
         formed ? absl::StrCat(generation.number()) : "-",
         formed ? absl::StrCat(
                      base::Counted(generation.members_size(), "agent"), ", ",
                      base::Counted(generation.world_size(), "rank"))
                : "-",
         StepOf(job), InForce(job), PinOf(job)});
  }
  return Table(rows);
}

std::string JobDetails(const v1::JobState& job) {
  std::vector<Row> rows = {{"job", Name(job.group())},
                           {"state", job.state()},
                           {"reason", job.reason()},
                           {"pin", PinOf(job)}};
  if (job.has_decision()) rows.push_back({"in force", Made(job.decision())});
  if (job.has_prepared()) rows.push_back({"prepared", Made(job.prepared())});
  if (job.has_generation()) {
    rows.push_back(
        {"generation", absl::StrCat(job.generation().number(), ", launch '",
                                    job.generation().launch(), "', from step ",
                                    job.generation().base_step(),
                                    OnShrinkText(job.generation()))});
    rows.push_back({"plan", job.plan()});
    rows.push_back(
        {"step",
         absl::StrCat(StepOf(job), ", ", job.committed_count(), " committed, ",
                      job.failed_attempts(), " failed attempts")});
  }
  AddMasks(job, rows);
  if (job.step_seconds() > 0) {
    rows.push_back(
        {"step takes", absl::StrFormat("%.3f s", job.step_seconds())});
  }
  if (job.has_exchange_share()) {
    rows.push_back({"waiting", absl::StrFormat("%.1f %% of a step",
                                               100 * job.exchange_share())});
  }
  if (job.has_account() && job.account().dense_bytes() > 0) {
    rows.push_back({"saved", SavedOf(job.account())});
  }
  if (job.state() == "running") rows.push_back({"risk r", RiskOf(job)});
  std::string text = Table(rows);
  if (job.has_generation()) {
    absl::StrAppend(&text, "\n", MembersTable(job.generation()));
    absl::StrAppend(&text, PathsTable(job));
  }
  return text;
}

std::string PlanTable(const v1::ListJobsResponse& jobs) {
  std::vector<Row> rows = {{"JOB", "STATE", "PLAN"}};
  for (const v1::JobState& job : jobs.jobs()) {
    if (!job.has_generation()) continue;
    rows.push_back({Name(job.group()), job.state(), job.plan()});
  }
  return rows.size() == 1 ? "no job has had a generation\n" : Table(rows);
}

std::string MasksText(const v1::JobState& job) {
  std::vector<Row> rows = {{"job", Name(job.group())}};
  AddMasks(job, rows);
  if (rows.size() == 1) {
    rows.push_back({"masks", job.state() == "running"
                                 ? "nobody has voted for any"
                                 : "not known: the job is " + job.state()});
  } else if (!job.has_keep_by_parameter()) {
    rows.push_back({"each keeps", NotTold(job)});
  }
  std::string text = Table(rows);
  if (job.has_keep_by_parameter()) {
    absl::StrAppend(&text, "\n", KeepTable(job.keep_by_parameter()));
  }
  return text;
}

std::string DecisionsText(const v1::JobState& job, bool why) {
  std::vector<Row> rows = {{"VERSION", "WHAT", "STATE"}};
  if (why) rows[0].push_back("WHY");
  for (const v1::Decision& decision : job.history()) {
    const uint64_t version = decision.version();
    rows.push_back({absl::StrCat(version), ModeAndCodec(decision),
                    job.has_decision() && version == job.decision().version()
                        ? "in force"
                    : job.has_prepared() && version == job.prepared().version()
                        ? "prepared"
                        : "-"});
    if (why) rows.back().push_back(decision.reason());
  }
  std::string text = rows.size() == 1 ? absl::StrCat("job ", Name(job.group()),
                                                     " has had no decision\n")
                                      : Table(rows);
  if (why) absl::StrAppend(&text, "\nnow: ", job.reason(), "\n");
  return text;
}

std::string JobLine(const v1::JobState& job) {
  std::string text = absl::StrCat("step ", StepOf(job), "  ", job.state());
  if (job.has_generation()) {
    absl::StrAppend(&text, "  generation ", job.generation().number());
  }
  if (job.has_decision()) {
    absl::StrAppend(&text, "  ", ModeAndCodec(job.decision()));
  }
  if (job.has_prepared()) {
    absl::StrAppend(&text, "  prepared ", ModeAndCodec(job.prepared()));
  }
  if (job.has_pin()) {
    absl::StrAppend(&text, "  pinned to ", ModeAndCodec(job.pin()));
  }
  return absl::StrCat(text, "  ", job.reason(), "\n");
}

std::string PinText(const v1::JobState& job) {
  return absl::StrCat(job.has_pin()
                          ? absl::StrCat("pinned to ", ModeAndCodec(job.pin()))
                          : "left to the policy",
                      "\n", JobLine(job));
}

std::string NewsOf(const v1::JobState& job) {
  std::string reason = job.reason();
  reason.erase(std::remove_if(
                   reason.begin(), reason.end(),
                   [](unsigned char c) { return std::isdigit(c) || c == '.'; }),
               reason.end());
  return absl::StrCat(job.state(), "|", job.generation().number(), "|",
                      job.decision().version(), "|", job.prepared().version(),
                      "|", PinOf(job), "|", job.failed_attempts(), "|", reason);
}

}  // namespace pactrain::coordinator
