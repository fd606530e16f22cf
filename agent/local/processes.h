// Facts about processes of this machine, for whoever knew them before.
//
// Never a guess: where something cannot be read, nothing is said.
#ifndef PACTRAIN_AGENT_LOCAL_PROCESSES_H_
#define PACTRAIN_AGENT_LOCAL_PROCESSES_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/fd.h"

namespace pactrain::agent {

// Within which numbers and start times of processes mean the same: this boot of
// this machine, the namespaces of process numbers and of time. Without spaces;
// empty: not known.
std::string PlaceOfProcesses();

// In clock ticks since the boot. Nothing: no such process, or it is not known.
std::optional<uint64_t> StartOf(pid_t process);
// The same of the text of /proc/PID/stat.
std::optional<uint64_t> ParseStart(absl::string_view stat);

// Whether the process of this pidfd has ended. A loop that says "readable" is
// no proof: asio may hand a descriptor the event of one that was closed just
// before.
bool HasEnded(int process);

// The process that had this number and began then, as a pidfd.
struct Former {
  bool dead = false;  // A fact: nobody has the number, or another one has.
  base::Fd process;   // If it lives and can be watched.
};
Former FindFormer(pid_t process, uint64_t start);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_PROCESSES_H_
