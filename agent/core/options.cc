#include "agent/core/options.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "protocol/types.h"

namespace pactrain::agent {

absl::Status Options::Check() const {
  RETURN_IF_ERROR(protocol::CheckName("agent", agent));
  RETURN_IF_ERROR(protocol::CheckName("site", site));
  if (incarnation.empty()) {
    return absl::InvalidArgumentError("incarnation: may not be zero");
  }
  if (step_deadline < kMinStepDeadline || step_deadline > kMaxStepDeadline) {
    return absl::InvalidArgumentError(
        absl::StrCat("step_deadline is ", absl::FormatDuration(step_deadline),
                     "; allowed are 100ms to 24h"));
  }
  if (straggler_timeout < kMinStragglerTimeout ||
      straggler_timeout > kMaxStragglerTimeout) {
    return absl::InvalidArgumentError(absl::StrCat(
        "straggler_timeout is ", absl::FormatDuration(straggler_timeout),
        "; allowed are 100ms to 168h"));
  }
  if (max_trainers < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_trainers: ", max_trainers, "; want at least 1"));
  }
  if (told_elements < 1) {
    return absl::InvalidArgumentError("told_elements is 0; want at least 1");
  }
  return absl::OkStatus();
}

}  // namespace pactrain::agent
