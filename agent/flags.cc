#include "agent/flags.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <iostream>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/crew.h"
#include "base/net.h"
#include "base/one_line.h"
#include "base/status_macros.h"
#include "base/tls/tls_choice.h"
#include "config/load.h"
#include "pactrain/v1/config.pb.h"
#include "protocol/identity.h"
#include "protocol/limits.h"
#include "protocol/types.h"

namespace pactrain::agent {
namespace {

constexpr absl::Duration kMinConnectTimeout = absl::Milliseconds(1);
constexpr absl::string_view kOnStandardInput = "-";
constexpr absl::Duration kLineTimeout = absl::Minutes(1);
constexpr size_t kMaxLine = 300;

// The host's name as an agent name, empty if it cannot be one.
std::string HostName() {
  std::array<char, 65> text = {};
  if (gethostname(text.data(), text.size() - 1) != 0) return "";
  std::string name(text.data());
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return protocol::CheckName("name", name).ok() ? name : "";
}

base::Digest RandomDigest() {
  std::random_device random;
  auto word = [&] { return (uint64_t{random()} << 32) | random(); };
  return {word(), word()};
}

v1::AgentConfig Defaults() {
  v1::AgentConfig config;
  config.set_name(HostName());
  config.set_coordinator("127.0.0.1:7070");
  config.set_socket("unix:/run/pactrain/agent.sock");
  config.set_listen("127.0.0.1:0");
  config.set_listen_metrics("127.0.0.1:0");
  config.set_connect_timeout("60s");
  config.set_step_deadline("60s");
  config.set_straggler_timeout("30m");
  config.set_connections_per_link(4);
  config.set_renice(10);
  config.set_connections_per_source(protocol::kMaxConnectionsPerSource);
  config.set_log_level("info");
  return config;
}

absl::StatusOr<absl::Duration> ParseDuration(const std::string& where,
                                             const std::string& text,
                                             absl::Duration least,
                                             absl::Duration most) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < least ||
      duration > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": '", text, "' is not a duration from ",
                     absl::FormatDuration(least), " to ",
                     absl::FormatDuration(most), ", such as 500ms, 60s or 2m"));
  }
  return duration;
}

absl::Status SetCore(const v1::AgentConfig& config,
                     const config::Settings& settings, Options& core) {
  if (config.name().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(settings.Where("name"),
                     ": '' is not a name; give one (the default is the host's, "
                     "if that can be one)"));
  }
  core.agent = config.name();
  core.site = config.site().empty() ? config.name() : config.site();
  RETURN_IF_ERROR(protocol::CheckName(settings.Where("name"), core.agent));
  RETURN_IF_ERROR(protocol::CheckName(settings.Where("site"), core.site));
  core.incarnation = RandomDigest();
  ASSIGN_OR_RETURN(
      core.step_deadline,
      ParseDuration(settings.Where("step-deadline"), config.step_deadline(),
                    Options::kMinStepDeadline, Options::kMaxStepDeadline));
  ASSIGN_OR_RETURN(
      core.straggler_timeout,
      ParseDuration(settings.Where("straggler-timeout"),
                    config.straggler_timeout(), Options::kMinStragglerTimeout,
                    Options::kMaxStragglerTimeout));
  return core.Check();
}

base::TlsNames TlsNamesOf(const config::Settings& settings) {
  return {settings.Where("tls-cert"), settings.Where("tls-key"),
          settings.Where("tls-ca"), settings.Where("job-key-file")};
}

absl::Status SetTls(const v1::AgentConfig& config,
                    const config::Settings& settings, Driver::Options& driver) {
  const base::TlsNames names = TlsNamesOf(settings);
  protocol::Identity own = {protocol::Role::kAgent, driver.core.agent};
  ASSIGN_OR_RETURN(
      driver.tls,
      base::ChooseTls({config.tls_cert(), config.tls_key(), config.tls_ca()},
                      config.job_key_file(), names,
                      [&](const std::string& host) {
                        own.job = protocol::JobOf(host);
                        own.name = protocol::AgentNameOf(own.name, own.job);
                        return own.ToString();
                      }));
  // With a key of one job it is called NAME..JOB.
  driver.core.agent = own.name;
  RETURN_IF_ERROR(protocol::CheckName(
      absl::StrCat(settings.Where("name"), ", with the job of its key"),
      own.name));
  ASSIGN_OR_RETURN(const std::vector<std::string> uris,
                   base::CheckTlsFiles(driver.tls, names));
  if (!driver.tls.given()) return absl::OkStatus();
  return settings.At("tls-cert", protocol::CheckIdentity(uris, own));
}

absl::Status SetAccess(const v1::AgentConfig& config,
                       const config::Settings& settings, LocalAccess& access) {
  if (!config.socket_group().empty()) {
    const auto group = ParseGroup(config.socket_group());
    RETURN_IF_ERROR(settings.At("socket-group", group.status()));
    access.group = *group;
  }
  for (const std::string& text : config.socket_users()) {
    const auto user = ParseUser(text);
    RETURN_IF_ERROR(settings.At("socket-users", user.status()));
    access.users.push_back(*user);
  }
  if (access.users.empty() || access.group.has_value()) return absl::OkStatus();
  return settings.At("socket-users",
                     absl::InvalidArgumentError(
                         "are given without --socket-group; give a group that "
                         "they are all in, too"));
}

base::Protection ProtectionOf(const Driver::Options& driver) {
  return driver.tls.given() ? base::Protection::kTls
                            : base::Protection::kTlsNotYet;
}

// "none", "host:port", or "host" alone, which any port completes.
absl::Status CheckAdvertised(const std::string& where, const std::string& text,
                             base::Protection protection, bool insecure) {
  if (text == protocol::kNobodyDials) return absl::OkStatus();
  const size_t colon = text.rfind(':');
  const bool host_only = colon == text.npos || text.back() == ']';
  const std::string address = host_only ? absl::StrCat(text, ":1") : text;
  const absl::Status checked =
      base::CheckDialAddress(where, address, protection, insecure).status();
  // The port is ours: quote what was given.
  return absl::Status(
      checked.code(),
      absl::StrReplaceAll(checked.message(), {{absl::StrCat("'", address, "'"),
                                               absl::StrCat("'", text, "'")}}));
}

absl::Status SetAddresses(const v1::AgentConfig& config,
                          const config::Settings& settings, Flags& flags) {
  const bool insecure = config.insecure_network();
  Driver::Options& driver = flags.driver;
  const base::Protection tls = ProtectionOf(driver);
  const auto socket = ParseSocketPath(config.socket());
  RETURN_IF_ERROR(settings.At("socket", socket.status()));
  driver.socket_path = *socket;
  RETURN_IF_ERROR(SetAccess(config, settings, driver.access));
  driver.coordinator = config.coordinator();
  if (driver.coordinator != kOnStandardInput) {
    RETURN_IF_ERROR(base::CheckDialAddress(settings.Where("coordinator"),
                                           driver.coordinator, tls, insecure)
                        .status());
  }
  driver.listen = config.listen();
  ASSIGN_OR_RETURN(const base::PortRange listen,
                   base::CheckListenRange(settings.Where("listen"),
                                          driver.listen, tls, insecure));
  flags.metrics = {config.metrics_token_file(), driver.tls};
  ASSIGN_OR_RETURN(
      flags.listen_metrics,
      base::CheckReadersAddress(
          settings.Where("listen-metrics"), config.listen_metrics(),
          settings.Where("metrics-token-file"),
          base::Protection::kMetricsTokenNotYet, flags.metrics, insecure));
  driver.advertise_address = config.advertise_address();
  if (!driver.advertise_address.empty()) {
    return CheckAdvertised(settings.Where("advertise-address"),
                           driver.advertise_address, tls, insecure);
  }
  if (base::IsAnyAddress(listen.host)) {
    return absl::InvalidArgumentError(
        absl::StrCat(settings.Where("listen"), ": ", driver.listen,
                     " is no address that others could dial; give "
                     "--advertise-address (none: "
                     "nobody can dial this agent, so it dials all others)"));
  }
  return absl::OkStatus();
}

absl::Status Understand(const v1::AgentConfig& config,
                        const config::Settings& settings, Flags& flags) {
  Driver::Options& driver = flags.driver;
  RETURN_IF_ERROR(SetCore(config, settings, driver.core));
  flags.site_given = !config.site().empty();
  flags.log_level = config.log_level();
  flags.renice = static_cast<int>(config.renice());
  driver.insecure_network = config.insecure_network();
  ASSIGN_OR_RETURN(
      driver.connect_timeout,
      ParseDuration(settings.Where("connect-timeout"), config.connect_timeout(),
                    kMinConnectTimeout, absl::InfiniteDuration()));
  RETURN_IF_ERROR(SetTls(config, settings, driver));
  RETURN_IF_ERROR(SetAddresses(config, settings, flags));
  std::vector<EgressLimit> limits;
  for (const std::string& text : config.egress_limit()) {
    const auto limit = ParseEgressLimit(text);
    RETURN_IF_ERROR(settings.At("egress-limit", limit.status()));
    limits.push_back(*limit);
  }
  const auto egress = EgressLimits::Create(limits, driver.core.site);
  RETURN_IF_ERROR(settings.At("egress-limit", egress.status()));
  driver.egress = *egress;
  driver.connections_per_link = static_cast<int>(config.connections_per_link());
  driver.connections_per_source =
      static_cast<int>(config.connections_per_source());
  driver.sum_threads = config.sum_threads() == 0
                           ? base::ThreadsBesideOthers(base::Processors())
                           : static_cast<int>(config.sum_threads());
  // Last: what is wrong by itself is said before.
  return base::CheckProtected(
      driver.tls, TlsNamesOf(settings),
      config.insecure_network() || config.insecure_local());
}

absl::Status NoLine(absl::string_view when) {
  return absl::InvalidArgumentError(
      absl::StrCat("--coordinator=-: no line came on standard input ", when,
                   "; write the coordinator's host:port there, or give it to "
                   "--coordinator"));
}

// The line of standard input that names the coordinator.
absl::StatusOr<std::string> ReadCoordinator(base::Protection protection,
                                            bool insecure,
                                            absl::Duration timeout) {
  // Where it is closed a library may have got its number, for no file.
  struct stat about = {};
  if (fstat(STDIN_FILENO, &about) != 0 || (about.st_mode & S_IFMT) == 0) {
    return NoLine("which is closed");
  }
  timeout = std::min(timeout, kLineTimeout);
  const absl::Duration end = base::MonotonicNow() + timeout;
  std::string line;
  for (char byte = 0; byte != '\n' && line.size() <= kMaxLine;) {
    pollfd input = {STDIN_FILENO, POLLIN, 0};
    const absl::Duration left =
        std::max(end - base::MonotonicNow(), absl::ZeroDuration());
    const int ready =
        poll(&input, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
    if (ready == 0) {
      return NoLine(absl::StrCat("within ", absl::FormatDuration(timeout)));
    }
    const ssize_t bytes = ready < 0 ? -1 : read(STDIN_FILENO, &byte, 1);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) break;
    line += byte;
  }
  if (line.empty()) return NoLine("before its end");
  line = std::string(absl::StripAsciiWhitespace(line));
  RETURN_IF_ERROR(base::CheckDialAddress("the coordinator on standard input",
                                         line, protection, insecure)
                      .status());
  return line;
}

}  // namespace

std::optional<Flags> ParseFlags(int argc, const char* const* argv,
                                int* exit_code) {
  v1::AgentConfig config = Defaults();
  Flags flags;
  const config::Program program = {
      "pactrain-agent",
      "sums the gradients of this node's trainers with those of all other "
      "nodes.",
      "PACTRAIN_AGENT"};
  const bool start = config::Load(
      program, argc, argv, config,
      [&](const config::Settings& settings) {
        return Understand(config, settings, flags);
      },
      exit_code);
  if (!start) return std::nullopt;
  if (flags.driver.coordinator == kOnStandardInput) {
    // After all that takes long: the coordinator may be starting meanwhile.
    const auto said = ReadCoordinator(ProtectionOf(flags.driver),
                                      flags.driver.insecure_network,
                                      flags.driver.connect_timeout);
    if (!said.ok()) {
      std::cerr << "pactrain-agent: " << base::OneLine(said.status().message())
                << std::endl;
      *exit_code = 2;
      return std::nullopt;
    }
    flags.driver.coordinator = *said;
  }
  flags.reload =
      std::make_shared<config::Reload>(program, argc, argv, Defaults(), config);
  return flags;
}

}  // namespace pactrain::agent
