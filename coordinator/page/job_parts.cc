#include "coordinator/page/job_parts.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace pactrain::coordinator {
namespace {

double Number(uint64_t count) { return static_cast<double>(count); }

// Empty: there was no generation.
std::string TellerOf(const GroupSnapshot& group) {
  if (!group.generation) return "";
  for (const protocol::Member& member : group.generation->members) {
    if (std::count(member.ranks.begin(), member.ranks.end(), 0u) > 0) {
      return absl::StrCat("rank 0 at agent ", member.agent);
    }
  }
  return "";
}

}  // namespace

void WriteKeep(const GroupSnapshot& group, const JobTrack& track, double after,
               JsonWriter& json) {
  const protocol::KeepByParameter* const keep = group.keep_by_parameter.get();
  json.Key("keep_of").Object();
  json.Key("told").Bool(keep != nullptr);
  json.Key("teller").Text(TellerOf(group));
  if (keep != nullptr && track.keep_at() > after) {
    json.Key("masks").Text(keep->mask_digest.ToString(), 12);
    json.Key("parameters").Array();
    for (const auto& parameter : keep->parameters) {
      json.Array().Text(parameter.name);
      json.Number(Number(parameter.kept)).Number(Number(parameter.elements));
      json.End();
    }
    json.End();
    json.Key("others").Array().Number(keep->others);
    json.Number(Number(keep->others_kept));
    json.Number(Number(keep->others_elements)).End();
  }
  json.End();
}

void WritePaths(const GroupSnapshot& group, JsonWriter& json) {
  json.Key("paths").Array();
  for (const NodePath& node : group.node_paths) {
    json.Array().Text(node.agent).Text(node.path.name);
    json.Number(Number(node.path.nccl_buckets));
    json.Number(Number(node.path.nccl_fallbacks)).Text(node.path.reason);
    json.End();
  }
  json.End();
}

void WriteFailed(const GroupSnapshot& group, JsonWriter& json) {
  json.Key("failed").Number(Number(group.failed_attempts_total));
  json.Key("failed_of").Array();
  for (size_t i = 0; i < protocol::kCauses; ++i) {
    const uint64_t count = group.failed_by_cause_total[i];
    if (count == 0) continue;
    json.Array();
    json.Text(i == 0 ? "not told"
                     : protocol::CauseName(static_cast<protocol::Cause>(i)));
    json.Number(Number(count)).End();
  }
  json.End();
}

}  // namespace pactrain::coordinator
