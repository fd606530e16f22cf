#include "coordinator/flags.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/rate.h"
#include "base/status_macros.h"
#include "base/tls/tls_choice.h"
#include "config/load.h"
#include "coordinator/core/grants.h"
#include "coordinator/core/planner.h"
#include "coordinator/crl_file.h"
#include "coordinator/grants_file.h"
#include "pactrain/v1/config.pb.h"
#include "protocol/identity.h"
#include "protocol/limits.h"
#include "protocol/types.h"

namespace pactrain::coordinator {
namespace {

v1::CoordinatorConfig Defaults() {
  const Options core;
  v1::CoordinatorConfig config;
  config.set_listen("127.0.0.1:7070");
  config.set_listen_metrics("127.0.0.1:7071");
  config.set_listen_page("none");
  config.set_state_dir("pactrain-state");
  config.set_cluster("default");
  config.set_codec("fp32");
  config.set_risk("balanced");
  config.set_min_exchange_share(core.min_exchange_share);
  config.set_norm_alarm(core.norm_alarm);
  config.set_epoch_steps(core.epoch_steps);
  config.set_connections_per_source(protocol::kMaxConnectionsPerSource);
  config.set_presume_dead_after("never");
  config.set_log_level("info");
  return config;
}

// "a-b" or, for names that hold a '-', "a:b".
absl::StatusOr<std::pair<std::string, std::string>> ParseLink(
    absl::string_view text) {
  const char separator = text.find(':') == text.npos ? '-' : ':';
  const std::vector<std::string> sites = absl::StrSplit(text, separator);
  if (sites.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text,
        "' is not two sites; write a-b, or a:b where a name holds a '-'"));
  }
  return std::make_pair(sites[0], sites[1]);
}

// "site=rate".
absl::Status AddSiteRate(absl::string_view text, SiteRates& rates) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  const auto rate = base::ParseRate(parts.second);
  if (!rate.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "': ", absl::string_view(rate.status().message()),
        "; write SITE=RATE, such as eu=100mbit"));
  }
  if (!rates.emplace(parts.first, *rate).second) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the rate of site '", parts.first, "' is there twice; give it once"));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> ParseRisk(const std::string& text) {
  if (text == "exact") return 0;
  if (text == "safe") return 0.1;
  if (text == "balanced") return 0.3;
  if (text == "fast") return 1;
  double bound = 0;
  if (absl::SimpleAtod(text, &bound) && bound >= 0 && bound <= 1) return bound;
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text,
      "' is not exact, safe, balanced, fast or a number from 0 to 1"));
}

absl::StatusOr<absl::Duration> ParsePresumeDead(const std::string& text) {
  const absl::Duration least = Options().regroup_timeout;
  absl::Duration duration;
  if (text == "never") return absl::InfiniteDuration();
  if (absl::ParseDuration(text, &duration) && duration >= least) {
    return duration;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text,
      "' is neither never nor a time with its unit, such as 30m, of "
      "at least ",
      absl::FormatDuration(least)));
}

absl::Status SetCore(const v1::CoordinatorConfig& config,
                     const config::Settings& settings, Options& core) {
  if (config.codec() == "bf16") core.codec = protocol::Codec::kBf16;
  const auto risk = ParseRisk(config.risk());
  RETURN_IF_ERROR(settings.At("risk", risk.status()));
  core.risk_bound = *risk;
  core.min_exchange_share = config.min_exchange_share();
  core.norm_alarm = config.norm_alarm();
  if (core.norm_alarm > 0 && core.norm_alarm <= 1) {
    return settings.At(
        "norm-alarm",
        absl::InvalidArgumentError(absl::StrCat(
            "'", core.norm_alarm,
            "' is no factor; 0 (no alarm) and more than 1 are allowed")));
  }
  core.epoch_steps = config.epoch_steps();
  const auto presume_dead = ParsePresumeDead(config.presume_dead_after());
  RETURN_IF_ERROR(settings.At("presume-dead-after", presume_dead.status()));
  core.presume_dead_after = *presume_dead;
  for (const std::string& text : config.links()) {
    const auto link = ParseLink(text);
    RETURN_IF_ERROR(settings.At("links", link.status()));
    core.links.push_back(*link);
  }
  for (const std::string& text : config.site_rates()) {
    RETURN_IF_ERROR(
        settings.At("site-rates", AddSiteRate(text, core.site_rates)));
  }
  RETURN_IF_ERROR(
      settings.At("site-rates", CheckSiteRates(core.site_rates, core.links)));
  // All else was checked as it was read.
  return settings.At("links", CheckLinks(core.links));
}

base::TlsNames TlsNamesOf(const config::Settings& settings) {
  return {settings.Where("tls-cert"), settings.Where("tls-key"),
          settings.Where("tls-ca"), settings.Where("job-key-file")};
}

absl::Status SetTls(const v1::CoordinatorConfig& config,
                    const config::Settings& settings, base::TlsFiles& tls) {
  const base::TlsNames names = TlsNamesOf(settings);
  const protocol::Identity own = {protocol::Role::kCoordinator, ""};
  std::string bound;
  ASSIGN_OR_RETURN(
      tls, base::ChooseTls(
               {config.tls_cert(), config.tls_key(), config.tls_ca()},
               config.job_key_file(), names, [&](const std::string& host) {
                 bound = protocol::JobOf(host);
                 return own.ToString();
               }));
  if (!bound.empty()) {
    return settings.At(
        "job-key-file",
        absl::InvalidArgumentError(absl::StrCat(
            "the key is of job '", bound,
            "' alone, which makes no coordinator; give the key that it was "
            "made of")));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> uris,
                   base::CheckTlsFiles(tls, names));
  if (!tls.given()) return absl::OkStatus();
  return settings.At("tls-cert", protocol::CheckIdentity(uris, own));
}

// REQUIRES: flags.tls is set.
absl::Status SetPolicy(const v1::CoordinatorConfig& config,
                       const config::Settings& settings, Flags& flags) {
  flags.policy_file = config.policy_file();
  if (!flags.policy_file.empty()) {
    if (!flags.tls.given()) {
      return settings.At("policy-file",
                         absl::InvalidArgumentError(
                             "without certificates or a job's key nobody shows "
                             "who he is; give them, or leave the policy out"));
    }
    return settings.At("policy-file",
                       GrantsFile::Open(flags.policy_file).status());
  }
  // Who holds a job's key may do all with it.
  if (!flags.tls.given() || flags.tls.keeper != nullptr) {
    return absl::OkStatus();
  }
  return settings.At(
      "tls-cert",
      absl::InvalidArgumentError(absl::StrCat(
          "certificates need a policy-file, which says whose agents may run "
          "which jobs, and who may see and change them. This one allows what "
          "was allowed so far; write it to a file, leave what each needs, and "
          "give it as policy-file:\n",
          kAllGranted)));
}

// REQUIRES: flags.tls is set.
absl::Status SetCrl(const v1::CoordinatorConfig& config,
                    const config::Settings& settings, Flags& flags) {
  flags.crl_file = config.crl_file();
  if (flags.crl_file.empty()) return absl::OkStatus();
  if (!flags.tls.given() || flags.tls.keeper != nullptr) {
    return settings.At(
        "crl-file", absl::InvalidArgumentError(
                        "only a CA takes certificates back, and none is given; "
                        "with a job's key use pactrain-admin evict"));
  }
  return settings.At("crl-file",
                     CrlFile::Open(flags.crl_file, flags.tls.ca).status());
}

// REQUIRES: flags.tls is set.
absl::Status SetPage(const v1::CoordinatorConfig& config,
                     const config::Settings& settings, Flags& flags) {
  flags.price_per_gb = config.price_per_gb();
  const std::string& listen = config.listen_page();
  if (listen.empty() || listen == "none") {
    if (!config.page_token_file().empty()) {
      return settings.At("page-token-file",
                         absl::InvalidArgumentError(
                             "is given and there is no page; give "
                             "listen-page too, such as 127.0.0.1:7072"));
    }
    return absl::OkStatus();
  }
  flags.page = {config.page_token_file(), flags.tls};
  ASSIGN_OR_RETURN(
      flags.listen_page,
      base::CheckReadersAddress(settings.Where("listen-page"), listen,
                                settings.Where("page-token-file"),
                                base::Protection::kPageTokenNotYet, flags.page,
                                config.insecure_network()));
  return absl::OkStatus();
}

absl::Status Understand(const v1::CoordinatorConfig& config,
                        const config::Settings& settings, Flags& flags) {
  const bool insecure = config.insecure_network();
  flags.insecure_network = insecure;
  RETURN_IF_ERROR(SetTls(config, settings, flags.tls));
  RETURN_IF_ERROR(SetPolicy(config, settings, flags));
  RETURN_IF_ERROR(SetCrl(config, settings, flags));
  ASSIGN_OR_RETURN(
      flags.listen,
      base::CheckListenAddress(settings.Where("listen"), config.listen(),
                               flags.tls.given() ? base::Protection::kTls
                                                 : base::Protection::kTlsNotYet,
                               insecure));
  flags.metrics = {config.metrics_token_file(), flags.tls};
  ASSIGN_OR_RETURN(
      flags.listen_metrics,
      base::CheckReadersAddress(
          settings.Where("listen-metrics"), config.listen_metrics(),
          settings.Where("metrics-token-file"),
          base::Protection::kMetricsTokenNotYet, flags.metrics, insecure));
  RETURN_IF_ERROR(SetPage(config, settings, flags));
  flags.cluster = config.cluster();
  RETURN_IF_ERROR(
      protocol::CheckName(settings.Where("cluster"), flags.cluster));
  flags.state_dir = config.state_dir();
  if (flags.state_dir.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(settings.Where("state-dir"), ": must not be empty"));
  }
  flags.connections_per_source =
      static_cast<int>(config.connections_per_source());
  flags.log_level = config.log_level();
  RETURN_IF_ERROR(SetCore(config, settings, flags.core));
  if (!flags.restore.empty()) return absl::OkStatus();  // Serves nobody.
  // Last: what is wrong by itself is said before.
  return base::CheckProtected(flags.tls, TlsNamesOf(settings),
                              insecure || config.insecure_local());
}

}  // namespace

std::optional<Flags> ParseFlags(int argc, const char* const* argv,
                                int* exit_code) {
  v1::CoordinatorConfig config = Defaults();
  Flags flags;
  const config::Program program = {
      "pactrain-coordinator",
      "forms the groups that train together and decides what travels between "
      "them.",
      "PACTRAIN_COORDINATOR",
      "--restore",
      "Make a state directory of this backup (pactrain-admin backup), and "
      "exit",
      &flags.restore};
  const bool start = config::Load(
      program, argc, argv, config,
      [&](const config::Settings& settings) {
        return Understand(config, settings, flags);
      },
      exit_code);
  if (!start) return std::nullopt;
  flags.reload =
      std::make_shared<config::Reload>(program, argc, argv, Defaults(), config);
  return flags;
}

}  // namespace pactrain::coordinator
