// pactrain-agent: one per node. Flags, wiring, signals.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

#include "agent/driver.h"
#include "agent/flags.h"
#include "agent/metrics/agent_metrics.h"
#include "agent/scheduling.h"
#include "asio/io_context.hpp"
#include "asio/signal_set.hpp"
#include "asio/steady_timer.hpp"
#include "base/check.h"
#include "base/log.h"
#include "base/metrics/metrics_server.h"
#include "base/net.h"
#include "base/one_line.h"
#include "base/service_manager.h"
#include "base/tls/secrecy.h"

namespace pactrain::agent {
namespace {

int Failed(const absl::Status& status) {
  std::cerr << "pactrain-agent: " << base::OneLine(status.message())
            << std::endl;
  return 1;
}

void Renice(int by) {
  if (LowerNice(by)) return;
  LOG_INFO(
      "--renice {}: the system does not allow it (to root, CAP_SYS_NICE and "
      "systemd's LimitNICE=-{} it does); where trainers keep all processors "
      "busy "
      "its links wait for them",
      by, by);
}

// Tells whoever watches that the loop turns, for as long as it does.
void TellThatWeLive(asio::steady_timer& timer,
                    std::chrono::microseconds period) {
  timer.expires_after(period);
  timer.async_wait([&timer, period](const asio::error_code& error) {
    if (error) return;
    base::TellServiceManager("WATCHDOG=1");
    TellThatWeLive(timer, period);
  });
}

void ReloadAtHangups(asio::signal_set& hangups, const config::Reload& reload) {
  hangups.async_wait([&](const asio::error_code& error, int) {
    if (error) return;
    reload();
    ReloadAtHangups(hangups, reload);
  });
}

int Run(const Flags& flags) {
  asio::io_context io(1);
  // From here on a signal waits for the loop: the socket is always removed.
  asio::signal_set signals(io, SIGINT, SIGTERM), hangups(io, SIGHUP);
  ReloadAtHangups(hangups, *flags.reload);
  // Before the driver, which tells the coordinator where it is.
  auto metrics = base::MetricsServer::Start(
      flags.listen_metrics, flags.driver.metrics, {}, flags.metrics);
  if (!metrics.ok()) return Failed(metrics.status());
  Driver::Options options = flags.driver;
  options.metrics_address = (*metrics)->address();
  auto driver = Driver::Start(io, options);
  if (!driver.ok()) return Failed(driver.status());
  signals.async_wait([&](const asio::error_code& error, int) {
    if (error) return;
    base::TellServiceManager("STOPPING=1");
    (*driver)->Stop();
  });

  const Options& core = flags.driver.core;
  LOG_INFO("agent {} of site {}{}, coordinator {}", core.agent, core.site,
           flags.site_given ? "" : " (no --site given: each node is its own)",
           flags.driver.coordinator);
  std::printf("listening socket=%s data=%s metrics=%s\n",
              flags.driver.socket_path.c_str(),
              (*driver)->data_address().c_str(),
              (*metrics)->address().ToString().c_str());
  std::fflush(stdout);
  if (!base::TellServiceManager("READY=1")) {
    LOG_WARN("the service manager at $NOTIFY_SOCKET could not be told");
  }
  asio::steady_timer watchdog(io);
  if (const auto period = base::WatchdogPeriod()) {
    TellThatWeLive(watchdog, *period);
  }

  io.run();
  const int exit_code =
      (*driver)->error().ok() ? 0 : Failed((*driver)->error());
  driver->reset();
  // gRPC's own threads may still be winding up the last call: global state must
  // not be destroyed under them (seen: its reference counts abort the process).
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

}  // namespace
}  // namespace pactrain::agent

int main(int argc, char** argv) {
  // What gRPC has to say comes back as errors, in words.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // Standard output is for answers, also while settings are read.
  PT_CHECK(pactrain::base::InitLog("agent", "info"));
  // For docs/metrics.md (tools/metrics.py).
  if (argc == 2 && std::string_view(argv[1]) == "--list-metrics") {
    std::cout << pactrain::agent::AgentMetrics::Table();
    return 0;
  }
  const std::string not_hidden = pactrain::base::HideSecrets();
  int exit_code = 0;
  const std::optional<pactrain::agent::Flags> flags =
      pactrain::agent::ParseFlags(argc, argv, &exit_code);
  if (!flags.has_value()) return exit_code;
  pactrain::base::ForgetJobKeyVariable();
  PT_CHECK(pactrain::base::SetLogLevel(flags->log_level));
  if (!not_hidden.empty()) LOG_WARN("{}", not_hidden);
  pactrain::agent::AskForShortTurns();
  pactrain::agent::Renice(flags->renice);
  return pactrain::agent::Run(*flags);
}
