// The settings of pactrain-agent: its command line, variables and YAML file.
#ifndef PACTRAIN_AGENT_FLAGS_H_
#define PACTRAIN_AGENT_FLAGS_H_

#include <memory>
#include <optional>
#include <string>

#include "agent/driver.h"
#include "base/metrics/http_server.h"
#include "base/net.h"
#include "config/reload.h"

namespace pactrain::agent {

struct Flags {
  Driver::Options driver;
  base::HostPort listen_metrics;
  base::ReadersAccess metrics;
  std::string log_level;
  int renice = 0;  // LowerNice().
  bool site_given = false;
  std::shared_ptr<const config::Reload> reload;
};

// Reads and checks everything that can be checked before anything is opened.
// Nothing: the process is to end with `*exit_code`; the one message (a mistake,
// or what --help, --version or --print-config asked for) has been written.
std::optional<Flags> ParseFlags(int argc, const char* const* argv,
                                int* exit_code);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_FLAGS_H_
