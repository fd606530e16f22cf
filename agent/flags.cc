#include "agent/flags.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iostream>
#include <random>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/net.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "protocol/types.h"

namespace pactrain::agent {
namespace {

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

// As the flags are written, before they are understood.
struct Words {
  std::string step_deadline = "60s";
  std::string connect_timeout = "60s";
  std::string listen_metrics = "127.0.0.1:0";
  std::string socket = "unix:/run/pactrain/agent.sock";
  std::vector<std::string> egress_limits;
  bool insecure_network = false;
};

absl::StatusOr<absl::Duration> ParseDuration(const char* flag,
                                             const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration <= absl::Duration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, " '", text,
        "' is not a duration above zero, such as 500ms, 60s, 2m or inf"));
  }
  return duration;
}

absl::Status Understand(const Words& words, Flags& flags) {
  Driver::Options& driver = flags.driver;
  if (driver.core.agent.empty()) {
    return absl::InvalidArgumentError(
        "--name: the host's name cannot be an agent's name; give one");
  }
  flags.site_given = !driver.core.site.empty();
  if (!flags.site_given) driver.core.site = driver.core.agent;
  driver.core.incarnation = RandomDigest();
  ASSIGN_OR_RETURN(driver.core.step_deadline,
                   ParseDuration("--step-deadline", words.step_deadline));
  ASSIGN_OR_RETURN(driver.connect_timeout,
                   ParseDuration("--connect-timeout", words.connect_timeout));
  RETURN_IF_ERROR(driver.core.Check());
  ASSIGN_OR_RETURN(driver.socket_path, ParseSocketPath(words.socket));
  const bool insecure = words.insecure_network;
  RETURN_IF_ERROR(
      base::CheckDialAddress("--coordinator", driver.coordinator, insecure)
          .status());
  ASSIGN_OR_RETURN(
      const base::HostPort listen_data,
      base::CheckListenAddress("--listen-data", driver.listen_data, insecure));
  ASSIGN_OR_RETURN(flags.listen_metrics,
                   base::CheckListenAddress("--listen-metrics",
                                            words.listen_metrics, insecure));
  if (!driver.advertise_data.empty()) {
    RETURN_IF_ERROR(base::CheckDialAddress("--advertise-data",
                                           driver.advertise_data, insecure)
                        .status());
  } else if (base::IsAnyAddress(listen_data.host)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen-data ", driver.listen_data,
        " is no address that others could dial; give --advertise-data"));
  }
  std::vector<EgressLimit> limits;
  for (const std::string& text : words.egress_limits) {
    ASSIGN_OR_RETURN(limits.emplace_back(), ParseEgressLimit(text));
  }
  ASSIGN_OR_RETURN(driver.egress,
                   EgressLimits::Create(limits, driver.core.site));
  return absl::OkStatus();
}

}  // namespace

std::optional<Flags> ParseFlags(int argc, const char* const* argv,
                                int* exit_code) {
  Flags flags;
  Words words;
  Driver::Options& driver = flags.driver;
  driver.core.agent = HostName();
  driver.coordinator = "127.0.0.1:7070";
  flags.log_level = "info";

  CLI::App app{
      "pactrain-agent: sums the gradients of this node's trainers with "
      "those of all other nodes."};
  app.option_defaults()->always_capture_default();
  app.set_version_flag("--version", base::kVersion);
  app.add_option("--name", driver.core.agent,
                 "Unique in the cluster; default: the host's name");
  app.add_option("--site", driver.core.site,
                 "Nodes joined by a fast network; default: the agent's name");
  app.add_option("--coordinator", driver.coordinator, "host:port");
  app.add_option("--socket", words.socket, "For this node's trainers");
  app.add_option("--listen-data", driver.listen_data,
                 "host:port for other agents; port 0: any");
  app.add_option(
      "--advertise-data", driver.advertise_data,
      "host:port at which other agents reach this one; default: what "
      "--listen-data was bound to");
  app.add_option("--listen-metrics", words.listen_metrics,
                 "host:port of /metrics; port 0: any");
  app.add_option("--connect-timeout", words.connect_timeout,
                 "Gives up when no coordinator was reached this long after the "
                 "start; inf: never. Once connected, it never gives up");
  app.add_option("--step-deadline", words.step_deadline,
                 "Longest time without progress of a step");
  app.add_option("--egress-limit", words.egress_limits,
                 "SITE=RATE, such as eu=100mbit; *=RATE for every other site; "
                 "repeatable");
  app.add_flag("--insecure-network", words.insecure_network,
               "Allow listening beyond loopback, inside a network namespace of "
               "its own");
  app.add_option("--log-level", flags.log_level, "debug, info, warn or error");
  try {
    app.parse(argc, const_cast<char**>(argv));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help or --version
      *exit_code = app.exit(error);
    } else {
      std::cerr << "pactrain-agent: " << error.what() << "; see --help"
                << std::endl;
      *exit_code = 2;
    }
    return std::nullopt;
  }
  const absl::Status understood = Understand(words, flags);
  if (!understood.ok()) {
    std::cerr << "pactrain-agent: " << understood.message() << std::endl;
    *exit_code = 2;
    return std::nullopt;
  }
  return flags;
}

}  // namespace pactrain::agent
