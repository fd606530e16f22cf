#include "coordinator/admin/command.h"

#include <map>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/net.h"
#include "base/one_line.h"
#include "base/status_macros.h"
#include "base/tls/tls_choice.h"
#include "base/version.h"
#include "config/nearest.h"
#include "coordinator/admin/completion.h"
#include "protocol/identity.h"
#include "protocol/limits.h"
#include "protocol/types.h"

namespace pactrain::coordinator {
namespace {

const std::map<std::string, v1::Mode> kModes = {
    {"FULL", v1::MODE_FULL},
    {"COMPACTED", v1::MODE_COMPACTED},
    {"TERNARY", v1::MODE_TERNARY}};
const std::map<int, v1::Codec> kLevels = {{3, v1::CODEC_LEVELS3},
                                          {5, v1::CODEC_LEVELS5},
                                          {7, v1::CODEC_LEVELS7},
                                          {15, v1::CODEC_LEVELS15},
                                          {31, v1::CODEC_LEVELS31}};
const std::map<std::string, v1::Codec> kCodecs = {{"fp32", v1::CODEC_FP32},
                                                  {"bf16", v1::CODEC_BF16}};

// What was written, as words.
struct Words {
  std::string coordinator = "127.0.0.1:7070";
  base::TlsFiles tls;
  std::string job_key_file;
  bool insecure_network = false;
  bool json = false;
  bool coordinator_named = false;
  std::string name, mode, codec, new_file, who, bound_job, from_file;
  std::string file, shell;
  int levels = 0;
  bool why = false, force = false, verify = false;
  std::vector<std::string> witness_files;
  std::string at = "30m", overlap = "1h";
};

bool IsOfAJob(absl::string_view command) {
  return command == "job" || command == "watch" || command == "pin" ||
         command == "unpin" || command == "forget" || command == "masks" ||
         command == "decisions";
}

void AddOptions(CLI::App& app, Words& words) {
  app.add_option("--coordinator", words.coordinator, "host:port")
      ->envname("PACTRAIN_COORDINATOR")
      ->capture_default_str();
  app.add_option("--tls-cert", words.tls.cert,
                 "PEM file: an operator's or reader's certificate, for TLS")
      ->envname("PACTRAIN_ADMIN_TLS_CERT");
  app.add_option("--tls-key", words.tls.key, "PEM file: its key")
      ->envname("PACTRAIN_ADMIN_TLS_KEY");
  app.add_option("--tls-ca", words.tls.ca,
                 "PEM file: the CA of the coordinator's certificate")
      ->envname("PACTRAIN_ADMIN_TLS_CA");
  app.add_option("--job-key-file", words.job_key_file,
                 "Holds the job's key, instead of the three; the variable "
                 "PACTRAIN_JOB_KEY may hold the key itself")
      ->envname("PACTRAIN_ADMIN_JOB_KEY_FILE");
  app.add_flag("--insecure-network", words.insecure_network,
               "Allow an address beyond loopback, inside a network namespace "
               "of its own");
  app.add_flag("--json", words.json, "Print the answer as JSON");
  app.set_version_flag("--version", base::kVersion);
}

void AddCommands(CLI::App& app, Words& words) {
  const auto add = [&](const char* name, const char* help) {
    CLI::App* command = app.add_subcommand(name, help);
    command
        ->add_option("NAME", words.name,
                     "The job, or NAME/2 for its attached model 2")
        ->required();
    return command;
  };
  app.add_subcommand("jobs", "All jobs in a table");
  app.add_subcommand("agents", "All agents in a table");
  app.add_subcommand("links", "What agents measured between sites");
  app.add_subcommand("plan", "Which way sums travel between sites");
  CLI::App* audit = app.add_subcommand(
      "audit", "The audit log, and whether somebody has changed it");
  audit->add_flag(
      "--verify", words.verify,
      "Not the lines, but whether agents have seen others, or more");
  audit->add_option("--witness", words.witness_files,
                    "The same of a file that an agent keeps beside its socket "
                    "(SOCKET.audit), brought here; may be given several times");
  CLI::App* new_key =
      app.add_subcommand("new-key", "Makes a job's key; asks no coordinator");
  new_key
      ->add_option("FILE", words.new_file,
                   "Where it goes: a new file, for its owner alone")
      ->required();
  CLI::Option* job = new_key->add_option(
      "--job", words.bound_job,
      "Makes a key that shows, joins and changes nothing of another job");
  CLI::Option* from = new_key->add_option(
      "--from", words.from_file,
      "Holds the key that it is made of, the coordinator's");
  job->needs(from);
  from->needs(job);
  CLI::App* rotate = app.add_subcommand(
      "rotate-key",
      "Changes a job's key for a new one while the job runs; asks no "
      "coordinator");
  rotate->add_option("FILE", words.new_file, "The key's file")->required();
  rotate
      ->add_option(
          "--at", words.at,
          "When the new key is shown, as 2026-01-31T12:00:00Z or, from "
          "now, 30m: by then the file is on all machines")
      ->capture_default_str();
  rotate
      ->add_option("--overlap", words.overlap,
                   "How long the old one is taken after that")
      ->capture_default_str();
  const auto add_who = [&](const char* name, const char* help) {
    app.add_subcommand(name, help)
        ->add_option("WHO", words.who,
                     "agent/NAME, operator/NAME, reader/NAME, serial/HEX, "
                     "key/HEX; NAME alone: the agent of that name")
        ->required();
  };
  add_who("evict", "Somebody may do nothing any more, and what he does ends");
  add_who("readmit", "Takes that back");
  add("job", "One job: members, decision and why, pin, measured r");
  add("watch", "Prints what changes, until Ctrl-C");
  CLI::App* pin = add("pin", "What travels, whatever the policy says");
  pin->add_option("MODE", words.mode, "FULL, COMPACTED or TERNARY")
      ->required()
      ->check(CLI::IsMember(&kModes));
  pin->add_option("--levels", words.levels, "Of TERNARY: 3, 5, 7, 15 or 31")
      ->check(CLI::IsMember(&kLevels));
  pin->add_option("--codec", words.codec,
                  "Of FULL and COMPACTED: fp32 (the default) or bf16")
      ->check(CLI::IsMember(&kCodecs));
  add("unpin", "Leaves what travels to the policy again");
  add("masks", "What one job's masks keep, and how far they have settled");
  add("decisions", "One job's newest decisions")
      ->add_flag("--why", words.why, "With their reasons");
  CLI::App* drain = app.add_subcommand(
      "drain",
      "An agent's ranks leave their jobs, whose others go on; it takes no new "
      "ones until it is started again, or undrained");
  const auto add_agent = [&](CLI::App* command) {
    command->add_option("AGENT", words.who, "Its name")->required();
  };
  add_agent(drain);
  drain->add_flag("--force", words.force, "Also where that ends jobs");
  add_agent(app.add_subcommand("undrain", "Takes that back"));
  app.add_subcommand("backup",
                     "Writes the coordinator's state into a file beside it")
      ->add_option("FILE", words.file,
                   "Its name in the folder backups of the state directory")
      ->required();
  app.add_subcommand("completion", "Prints what a shell needs to complete this")
      ->add_option("SHELL", words.shell, "bash")
      ->required()
      ->check(CLI::IsMember({"bash"}));
  add("forget",
      "Gives up the job's state where the ranks that may hold it are gone for "
      "good: the next launch begins anew");
  app.add_subcommand(
      "doctor",
      "Checks this node, its agent and the cluster, and says what to fix");
}

absl::StatusOr<v1::Group> ReadGroup(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  uint32_t model = 0;
  RETURN_IF_ERROR(protocol::CheckName("NAME", parts[0]));
  if (parts.size() > 2 ||
      (parts.size() == 2 && (!absl::SimpleAtoi(parts[1], &model) ||
                             model >= protocol::kMaxModels))) {
    return absl::InvalidArgumentError(
        absl::StrCat("NAME: '", text,
                     "' is neither a job nor JOB/MODEL with a "
                     "model from 0 to ",
                     protocol::kMaxModels - 1));
  }
  v1::Group group;
  group.set_job(parts[0]);
  group.set_model(model);
  return group;
}

absl::StatusOr<v1::Pin> ReadPin(const Words& words) {
  v1::Pin pin;
  pin.set_mode(kModes.at(words.mode));
  if (pin.mode() == v1::MODE_TERNARY) {
    if (words.levels == 0 || !words.codec.empty()) {
      return absl::InvalidArgumentError(
          "TERNARY needs --levels 3, 5, 7, 15 or 31, and no --codec");
    }
    pin.set_codec(kLevels.at(words.levels));
    return pin;
  }
  if (words.levels != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--levels ", words.levels, " goes with TERNARY, not with ",
                     words.mode));
  }
  pin.set_codec(words.codec.empty() ? v1::CODEC_FP32 : kCodecs.at(words.codec));
  return pin;
}

// What a certificate allows is the coordinator's to say; who holds the job's
// key may do all.
absl::StatusOr<base::TlsFiles> ReadTls(const Words& words) {
  const base::TlsNames names = AdminTlsNames();
  protocol::Identity own = {protocol::Role::kOperator, ""};
  ASSIGN_OR_RETURN(const base::TlsFiles tls,
                   base::ChooseTls(words.tls, words.job_key_file, names,
                                   [&](const std::string& host) {
                                     own.job = protocol::JobOf(host);
                                     return own.ToString();
                                   }));
  RETURN_IF_ERROR(base::CheckTlsFiles(tls, names).status());
  return tls;
}

absl::Status ReadTimes(const Words& words, Command& command) {
  const absl::Time now = absl::Now();
  absl::Duration wait, overlap;
  if (absl::ParseDuration(words.at, &wait)) {
    command.at = now + wait;
  } else if (!absl::ParseTime(absl::RFC3339_full, words.at, &command.at,
                              nullptr)) {
    command.at = absl::InfinitePast();
  }
  const absl::Time latest = now + absl::Hours(24 * 366);
  if (command.at < now || command.at > latest) {
    return absl::InvalidArgumentError(
        absl::StrCat("--at: '", words.at,
                     "' is no time from now to a year from now; give one as "
                     "2026-01-31T12:00:00Z, or 30m"));
  }
  if (!absl::ParseDuration(words.overlap, &overlap) ||
      overlap < absl::ZeroDuration() || command.at + overlap > latest) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--overlap: '", words.overlap, "' is no time from 0s to a year"));
  }
  command.until = command.at + overlap;
  return absl::OkStatus();
}

absl::StatusOr<Command> Understand(const std::string& name,
                                   const Words& words) {
  Command command;
  command.name = name;
  command.coordinator = words.coordinator;
  command.coordinator_named = words.coordinator_named;
  command.insecure_network = words.insecure_network;
  command.json = words.json;
  command.new_file = words.new_file;
  if (name == "new-key") {
    command.bound_job = words.bound_job;
    command.from_file = words.from_file;
    if (!words.bound_job.empty()) {
      RETURN_IF_ERROR(protocol::CheckBoundJob("--job", words.bound_job));
    }
    return command;
  }
  if (name == "rotate-key") {
    RETURN_IF_ERROR(ReadTimes(words, command));
    return command;
  }
  if (name == "doctor") {  // Its findings say what is wrong.
    const absl::StatusOr<base::TlsFiles> tls = ReadTls(words);
    command.tls = tls.ok() ? *tls : words.tls;
    command.tls_mistake = tls.status();
    command.job_key_file = words.job_key_file;
    return command;
  }
  ASSIGN_OR_RETURN(command.tls, ReadTls(words));
  RETURN_IF_ERROR(
      base::CheckDialAddress("--coordinator (or PACTRAIN_COORDINATOR)",
                             words.coordinator,
                             command.tls.given() ? base::Protection::kTls
                                                 : base::Protection::kTlsNotYet,
                             words.insecure_network)
          .status());
  command.why = words.why;
  command.force = words.force;
  command.file = words.file;
  command.verify = words.verify || !words.witness_files.empty();
  command.witness_files = words.witness_files;
  if (name == "drain" || name == "undrain") {
    RETURN_IF_ERROR(protocol::CheckName("AGENT", words.who));
    command.who = words.who;
  }
  if (name == "backup") {
    RETURN_IF_ERROR(protocol::CheckName("FILE", words.file));
  }
  if (IsOfAJob(name)) {
    ASSIGN_OR_RETURN(command.group, ReadGroup(words.name));
  }
  if (name == "evict" || name == "readmit") {
    // An agent's name alone is what most mean.
    const bool is_name = protocol::CheckName("WHO", words.who).ok() &&
                         words.who != "operator" && words.who != "reader";
    command.who =
        is_name ? protocol::AgentCalled(words.who).Short() : words.who;
  }
  if (name == "forget" && command.group.model() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("NAME: '", words.name,
                     "': a job is forgotten with all its models; "
                     "write ",
                     command.group.job()));
  }
  if (name == "pin") {
    ASSIGN_OR_RETURN(command.pin, ReadPin(words));
  }
  return command;
}

std::string Meant(const std::string& word,
                  const std::vector<std::string>& allowed) {
  const std::string nearest = config::Nearest(word, allowed);
  return nearest.empty() ? "" : absl::StrCat("did you mean ", nearest, "? ");
}

// CLI11 names neither the word nor what is allowed.
std::string MistakeOf(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> rest = app.remaining(/*recurse=*/true);
  std::vector<std::string> flags = FlagsOf(app);
  for (const CLI::App* command : app.get_subcommands()) {
    for (const std::string& flag : FlagsOf(*command)) {
      if (flag != "--help") flags.push_back(flag);  // Is there already.
    }
  }
  for (const std::string& word : rest) {
    if (!absl::StartsWith(word, "-")) continue;
    const std::string flag = word.substr(0, word.find('='));
    return absl::StrCat("unknown flag '", flag, "'; ", Meant(flag, flags),
                        "allowed are ", absl::StrJoin(flags, ", "));
  }
  const bool no_command =
      app.get_subcommands().empty() && error.get_name() == "RequiredError";
  if (!no_command) return error.what();
  const std::vector<std::string> commands = CommandsOf(app);
  return absl::StrCat(rest.empty()
                          ? ""
                          : absl::StrCat("'", rest[0], "' is no command; ",
                                         Meant(rest[0], commands)),
                      "a command is needed: ", absl::StrJoin(commands, ", "));
}

}  // namespace

base::TlsNames AdminTlsNames() {
  return {"--tls-cert (or PACTRAIN_ADMIN_TLS_CERT)",
          "--tls-key (or PACTRAIN_ADMIN_TLS_KEY)",
          "--tls-ca (or PACTRAIN_ADMIN_TLS_CA)",
          "--job-key-file (or PACTRAIN_ADMIN_JOB_KEY_FILE)"};
}

std::optional<Command> ParseCommand(int argc, const char* const* argv,
                                    std::ostream& out, std::ostream& err,
                                    int* exit_code) {
  CLI::App app{
      "pactrain-admin: shows what a coordinator knows of its jobs, pins what "
      "they send, and finds what is wrong (doctor)."};
  app.require_subcommand(1);
  app.fallthrough();  // Options may stand after the command as well.
  Words words;
  AddOptions(app, words);
  AddCommands(app, words);
  const auto mistake = [&](absl::string_view what) {
    err << "pactrain-admin: " << base::OneLine(what) << "; see --help"
        << std::endl;
    *exit_code = 2;
    return std::nullopt;
  };
  try {
    app.parse(argc, const_cast<char**>(argv));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return mistake(MistakeOf(app, error));
    *exit_code = app.exit(error, out, err);  // --help or --version
    return std::nullopt;
  }
  if (app.got_subcommand("completion")) {
    out << BashCompletion(app);
    *exit_code = 0;
    return std::nullopt;
  }
  words.coordinator_named = app.count("--coordinator") > 0;
  auto command = Understand(app.get_subcommands().front()->get_name(), words);
  if (!command.ok()) return mistake(command.status().message());
  return *std::move(command);
}

}  // namespace pactrain::coordinator
