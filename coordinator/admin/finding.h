// What `pactrain doctor` has to say of one thing that it looked at.
#ifndef PACTRAIN_COORDINATOR_ADMIN_FINDING_H_
#define PACTRAIN_COORDINATOR_ADMIN_FINDING_H_

#include <string>
#include <vector>

namespace pactrain::coordinator {

enum class Level { kOk, kWarning, kProblem };

struct Finding {
  std::string check;  // One word: "agent".
  Level level = Level::kOk;
  std::string what;
  std::string to_do;  // Empty where all is well.
};

using Findings = std::vector<Finding>;

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_FINDING_H_
