// pactrain-coordinator: one per organisation. Flags, wiring, signals.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/metrics/metrics_server.h"
#include "base/one_line.h"
#include "base/service_manager.h"
#include "base/tls/secrecy.h"
#include "coordinator/crl_file.h"
#include "coordinator/driver/driver.h"
#include "coordinator/flags.h"
#include "coordinator/grants_file.h"
#include "coordinator/metrics/agent_targets.h"
#include "coordinator/metrics/coordinator_metrics.h"
#include "coordinator/page/page_board.h"
#include "coordinator/page/page_server.h"
#include "coordinator/rpc/server.h"
#include "coordinator/store/backup.h"
#include "coordinator/store/sqlite_journal.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

int Failed(const absl::Status& status) {
  std::cerr << "pactrain-coordinator: " << base::OneLine(status.message())
            << std::endl;
  return 1;
}

// Two for each connection (base/rpc/capped_listener.h), and some for all else.
void AllowManyDescriptors() {
  rlimit limit = {};
  constexpr rlim_t kWanted = 2 * protocol::kMaxConnections + 512;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kWanted) {
    return;
  }
  limit.rlim_cur = std::min(kWanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

// The next of the signals; 0: none came within `period`.
int NextSignal(const sigset_t& signals,
               const std::optional<std::chrono::microseconds>& period) {
  if (!period) {
    int signal = 0;
    sigwait(&signals, &signal);
    return signal;
  }
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(*period);
  const timespec wait = {seconds.count(), (*period - seconds).count() * 1000};
  return std::max(0, sigtimedwait(&signals, nullptr, &wait));
}

// Until a signal comes that ends it; meanwhile tells whoever watches that the
// driver answers.
int WaitForSignal(const sigset_t& signals, const Driver& driver,
                  const config::Reload& reload) {
  const auto period = base::WatchdogPeriod();
  while (true) {
    const int signal = NextSignal(signals, period);
    if (signal == SIGHUP) {
      reload();
    } else if (signal != 0) {
      return signal;
    } else {
      driver.Snapshot();  // Its mutex is free, and its state in one piece.
      base::TellServiceManager("WATCHDOG=1");
    }
  }
}

int Restore(const Flags& flags) {
  const absl::Status restored =
      RestoreBackup(flags.restore, flags.state_dir, flags.cluster);
  if (!restored.ok()) return Failed(restored);
  std::printf(
      "restored %s into %s; start the coordinator on it, and make sure "
      "that no other runs on what it was made of\n",
      flags.restore.c_str(), flags.state_dir.c_str());
  return 0;
}

int Run(const Flags& flags, const sigset_t& signals) {
  auto journal = SqliteJournal::Open(flags.state_dir, flags.cluster);
  if (!journal.ok()) return Failed(journal.status());
  auto driver = Driver::Create(flags.core, journal->get());
  if (!driver.ok()) return Failed(driver.status());
  base::ConnectionCaps::Limits caps = Server::kCaps;
  caps.per_source = flags.connections_per_source;
  Server::Sources sources;
  if (!flags.policy_file.empty()) {
    auto file = GrantsFile::Open(flags.policy_file);
    if (!file.ok()) return Failed(file.status());
    sources.grants = [file = std::shared_ptr<GrantsFile>(*std::move(file))] {
      return file->Get(base::MonotonicNow());
    };
  }
  if (!flags.crl_file.empty()) {
    auto file = CrlFile::Open(flags.crl_file, flags.tls.ca);
    if (!file.ok()) return Failed(file.status());
    sources.revoked = [file = std::shared_ptr<CrlFile>(*std::move(file))] {
      return file->Get(base::MonotonicNow(), absl::Now());
    };
  }
  auto server = Server::Start(flags.listen, flags.tls, driver->get(), caps,
                              std::move(sources));
  if (!server.ok()) return Failed(server.status());
  const auto snapshot = [d = driver->get()] { return d->Snapshot(); };
  const auto refused = [d = driver->get()](const std::string& source,
                                           const std::string& path,
                                           absl::string_view why) {
    d->OnRefused({"call refused",
                  {"stranger", ""},
                  "",
                  absl::StrCat(path, " from ", source),
                  std::string(why),
                  ""});
  };
  auto metrics = base::MetricsServer::Start(
      flags.listen_metrics,
      std::make_shared<CoordinatorMetrics>(
          snapshot,
          [s = server->get()] {
            return Connections{s->open_connections(), s->refused_connections(),
                               s->certificates()};
          },
          [s = server->get()] { return s->calls(); }, flags.insecure_network),
      {{"/sd/agents",
        {"application/json", [snapshot] { return AgentTargets(snapshot()); }}}},
      flags.metrics, refused);
  if (!metrics.ok()) return Failed(metrics.status());
  PageBoard board({snapshot, [s = server->get()] { return s->certificates(); }},
                  {flags.price_per_gb, flags.insecure_network});
  std::unique_ptr<PageServer> page;
  if (flags.listen_page) {
    auto started = PageServer::Start(
        {*flags.listen_page, flags.page}, &board,
        [d = driver->get()](const std::string& source, const std::string& why) {
          d->OnRefused({"page refused",
                        {"stranger", ""},
                        "",
                        "from " + source,
                        why,
                        ""});
        });
    if (!started.ok()) return Failed(started.status());
    page = std::move(*started);
    board.Start();
  }

  const CoordinatorState::Identity& identity = (*journal)->identity();
  LOG_INFO("cluster {} ({}), term {}, state in {}", flags.cluster,
           identity.cluster_id, identity.term, flags.state_dir);
  std::printf("listening grpc=%s metrics=%s%s\n",
              (*server)->address().ToString().c_str(),
              (*metrics)->address().ToString().c_str(),
              page ? (" page=" + page->address().ToString()).c_str() : "");
  std::fflush(stdout);

  if (!base::TellServiceManager("READY=1")) {
    LOG_WARN("the service manager at $NOTIFY_SOCKET could not be told");
  }
  const int signal = WaitForSignal(signals, **driver, *flags.reload);
  base::TellServiceManager("STOPPING=1");
  LOG_INFO("stopping on signal {}; agents carry on", signal);
  board.Stop();
  (*server)->Stop();
  driver->reset();
  journal->reset();
  // Not by way of the metrics server, which takes seconds to stop, and not
  // under gRPC's threads, which may still be winding up.
  std::fflush(nullptr);
  std::_Exit(0);
}

}  // namespace
}  // namespace pactrain::coordinator

int main(int argc, char** argv) {
  // What gRPC has to say comes back as errors, in words.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // Standard output is for answers, also while settings are read.
  PT_CHECK(pactrain::base::InitLog("coordinator", "info"));
  // For docs/metrics.md (tools/metrics.py).
  if (argc == 2 && std::string_view(argv[1]) == "--list-metrics") {
    std::cout << pactrain::coordinator::CoordinatorMetrics::Table();
    return 0;
  }
  const std::string not_hidden = pactrain::base::HideSecrets();
  int exit_code = 0;
  const std::optional<pactrain::coordinator::Flags> flags =
      pactrain::coordinator::ParseFlags(argc, argv, &exit_code);
  if (!flags.has_value()) return exit_code;
  pactrain::base::ForgetJobKeyVariable();
  PT_CHECK(pactrain::base::SetLogLevel(flags->log_level));
  if (!not_hidden.empty()) LOG_WARN("{}", not_hidden);
  // A file size limit is an error of write(), not our end.
  std::signal(SIGXFSZ, SIG_IGN);
  if (!flags->restore.empty()) return pactrain::coordinator::Restore(*flags);
  pactrain::coordinator::AllowManyDescriptors();
  // Blocked before any thread starts, so that only sigwait() takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return pactrain::coordinator::Run(*flags, signals);
}
