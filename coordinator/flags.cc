#include "coordinator/flags.h"

#include <iostream>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "protocol/types.h"

namespace pactrain::coordinator {
namespace {

// As the flags are written, before they are understood.
struct Words {
  std::string listen = "127.0.0.1:7070";
  std::string listen_metrics = "127.0.0.1:7071";
  std::string links;
  std::string codec = "fp32";
  std::string risk = "balanced";
  bool insecure_network = false;
};

// "a-b" or, for names that hold a '-', "a:b".
absl::StatusOr<std::pair<std::string, std::string>> ParseLink(
    absl::string_view text) {
  const char separator = text.find(':') == text.npos ? '-' : ':';
  const std::vector<std::string> sites = absl::StrSplit(text, separator);
  if (sites.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--links: '", text,
        "' is not two sites; write a-b, or a:b where a name holds a '-'"));
  }
  return std::make_pair(sites[0], sites[1]);
}

absl::Status Understand(const Words& words, Flags& flags) {
  ASSIGN_OR_RETURN(flags.listen,
                   base::CheckListenAddress("--listen", words.listen,
                                            words.insecure_network));
  ASSIGN_OR_RETURN(
      flags.listen_metrics,
      base::CheckListenAddress("--listen-metrics", words.listen_metrics,
                               words.insecure_network));
  RETURN_IF_ERROR(protocol::CheckName("--cluster", flags.cluster));
  if (flags.state_dir.empty()) {
    return absl::InvalidArgumentError("--state-dir must not be empty");
  }
  if (words.codec == "bf16") {
    flags.core.codec = protocol::Codec::kBf16;
  } else if (words.codec != "fp32") {
    return absl::InvalidArgumentError(
        absl::StrCat("--codec '", words.codec, "' is not fp32 or bf16"));
  }
  if (words.risk == "exact") {
    flags.core.risk_bound = 0;
  } else if (words.risk == "safe") {
    flags.core.risk_bound = 0.1;
  } else if (words.risk == "fast") {
    flags.core.risk_bound = 1;
  } else if (words.risk != "balanced" &&
             !absl::SimpleAtod(words.risk, &flags.core.risk_bound)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--risk '", words.risk,
        "' is not exact, safe, balanced, fast or a number from 0 to 1"));
  }
  for (absl::string_view text :
       absl::StrSplit(words.links, ',', absl::SkipEmpty())) {
    ASSIGN_OR_RETURN(flags.core.links.emplace_back(), ParseLink(text));
  }
  return flags.core.Check();
}

}  // namespace

std::optional<Flags> ParseFlags(int argc, const char* const* argv,
                                int* exit_code) {
  Flags flags;
  Words words;
  flags.state_dir = "pactrain-state";
  flags.cluster = "default";
  flags.log_level = "info";

  CLI::App app{
      "pactrain-coordinator: forms the groups that train together and decides "
      "what "
      "travels between them."};
  app.option_defaults()->always_capture_default();
  app.set_version_flag("--version", base::kVersion);
  app.add_option("--listen", words.listen, "host:port for agents; port 0: any");
  app.add_option("--listen-metrics", words.listen_metrics,
                 "host:port of /metrics; port 0: any");
  app.add_option("--state-dir", flags.state_dir,
                 "Holds the journal; made if missing");
  app.add_option("--cluster", flags.cluster,
                 "Name of the cluster that the state directory belongs to");
  app.add_option(
      "--links", words.links,
      "Links between sites, such as a-b,b-c (a:b where a name holds a '-'); "
      "none: all sites hang on a common core");
  app.add_option("--codec", words.codec,
                 "Of values between sites: fp32 or bf16");
  app.add_option(
      "--risk", words.risk,
      "Share of the effective batch that TERNARY may cost: exact (0: "
      "never TERNARY), safe (0.1), balanced (0.3), fast (1) or a "
      "number");
  app.add_option("--min-exchange-share", flags.core.min_exchange_share,
                 "TERNARY is not chosen where trainers wait a smaller share of "
                 "a step for the exchange");
  app.add_option("--epoch-steps", flags.core.epoch_steps,
                 "Steps of a decision interval");
  app.add_flag(
      "--insecure-network", words.insecure_network,
      "Allow listening beyond loopback, inside a network namespace of its own");
  app.add_option("--log-level", flags.log_level, "debug, info, warn or error");
  try {
    app.parse(argc, const_cast<char**>(argv));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help or --version
      *exit_code = app.exit(error);
    } else {
      std::cerr << "pactrain-coordinator: " << error.what() << "; see --help"
                << std::endl;
      *exit_code = 2;
    }
    return std::nullopt;
  }
  const absl::Status understood = Understand(words, flags);
  if (!understood.ok()) {
    std::cerr << "pactrain-coordinator: " << understood.message() << std::endl;
    *exit_code = 2;
    return std::nullopt;
  }
  return flags;
}

}  // namespace pactrain::coordinator
