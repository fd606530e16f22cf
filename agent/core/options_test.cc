#include "agent/core/options.h"

#include "base/status_matchers.h"

namespace pactrain::agent {
namespace {

using base::StatusIs;
using testing::HasSubstr;

Options Good() {
  Options options;
  options.agent = "x";
  options.site = "a";
  options.incarnation = {7, 7};
  return options;
}

void ExpectRefused(const Options& options, const std::string& words) {
  EXPECT_THAT(options.Check(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)));
}

TEST(AgentOptions, DefaultsAreFine) { EXPECT_OK(Good().Check()); }

TEST(AgentOptions, OutOfRangeIsRefusedByName) {
  for (const absl::Duration deadline :
       {Options::kMinStepDeadline - absl::Milliseconds(1),
        Options::kMaxStepDeadline + absl::Milliseconds(1)}) {
    Options options = Good();
    options.step_deadline = deadline;
    ExpectRefused(options, "step_deadline");
  }
  for (const absl::Duration timeout :
       {Options::kMinStragglerTimeout - absl::Milliseconds(1),
        Options::kMaxStragglerTimeout + absl::Milliseconds(1)}) {
    Options options = Good();
    options.straggler_timeout = timeout;
    ExpectRefused(options, "straggler_timeout");
  }
  Options options = Good();
  options.agent = "X!";
  ExpectRefused(options, "agent");
  options = Good();
  options.site = "";
  ExpectRefused(options, "site");
  options = Good();
  options.told_elements = 0;
  ExpectRefused(options, "told_elements");
}

}  // namespace
}  // namespace pactrain::agent
