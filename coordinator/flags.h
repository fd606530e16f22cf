// The settings of pactrain-coordinator: its command line, variables and YAML
// file.
#ifndef PACTRAIN_COORDINATOR_FLAGS_H_
#define PACTRAIN_COORDINATOR_FLAGS_H_

#include <memory>
#include <optional>
#include <string>

#include "base/metrics/http_server.h"
#include "base/net.h"
#include "base/tls/tls_files.h"
#include "config/reload.h"
#include "coordinator/core/options.h"

namespace pactrain::coordinator {

struct Flags {
  base::HostPort listen;
  base::HostPort listen_metrics;
  base::ReadersAccess metrics;
  std::optional<base::HostPort> listen_page;  // None: there is no page.
  base::ReadersAccess page;
  double price_per_gb = 0;  // 0: not known.
  base::TlsFiles tls;       // Not given: plain text.
  std::string policy_file;  // Empty: there is none.
  std::string crl_file;     // The same.
  bool insecure_network = false;
  int connections_per_source = 0;  // Beyond loopback.
  std::string state_dir;
  std::string cluster;
  std::string log_level;
  std::string restore;  // A backup to make a state directory of; or empty.
  Options core;
  std::shared_ptr<const config::Reload> reload;
};

// Reads and checks everything that can be checked before anything is opened.
// Nothing: the process is to end with `*exit_code`; the one message (a mistake,
// or what --help, --version or --print-config asked for) has been written.
std::optional<Flags> ParseFlags(int argc, const char* const* argv,
                                int* exit_code);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_FLAGS_H_
