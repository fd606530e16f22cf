#include "coordinator/admin/run.h"

#include <google/protobuf/util/json_util.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/one_line.h"
#include "base/status_macros.h"
#include "base/tls/job_keys.h"
#include "base/utc_text.h"
#include "config/small_file.h"
#include "coordinator/admin/audit.h"
#include "coordinator/admin/cluster_text.h"
#include "coordinator/admin/job_text.h"
#include "coordinator/admin/witness_check.h"
#include "coordinator/audit/chain.h"
#include "protocol/identity.h"

namespace pactrain::coordinator {
namespace {

// In one line, with fields that are 0, too.
std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  std::string json;
  // Fails for types that are not ours only.
  (void)google::protobuf::util::MessageToJsonString(message, &json, options);
  return json + "\n";
}

absl::Status Watch(const Command& command, AdminClient& client,
                   std::ostream& out, std::ostream& err) {
  std::string news;
  return client.Watch(
      command.group,
      [&](const v1::JobState& job) {
        if (command.json) {
          out << ToJson(job) << std::flush;
        } else if (NewsOf(job) != news) {
          news = NewsOf(job);
          out << JobLine(job) << std::flush;
        }
      },
      [&](const absl::Status& why) {
        news.clear();  // The next line says that it is back.
        err << "pactrain-admin: " << base::OneLine(why.message())
            << "; trying again until Ctrl-C" << std::endl;
      });
}

// What agents keep beside their sockets, brought here.
absl::Status ReadWitnessFiles(const std::vector<std::string>& files,
                              WitnessCheck& check) {
  for (const std::string& file : files) {
    const absl::StatusOr<std::string> text = config::ReadSmallFile(file);
    RETURN_IF_ERROR(text.status());
    const absl::StatusOr<protocol::KeptHeads> kept = protocol::ReadHeads(*text);
    if (!kept.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--witness: ", file, " is no file of an agent: ",
                       absl::string_view(kept.status().message())));
    }
    for (const protocol::AuditHead& head : kept->heads) {
      check.Add(kept->agent, head);
    }
  }
  return absl::OkStatus();
}

absl::Status Audit(const Command& command, AdminClient& client,
                   std::ostream& out) {
  AuditChain chain;
  WitnessCheck witnesses;
  RETURN_IF_ERROR(ReadWitnessFiles(command.witness_files, witnesses));
  bool ask = command.verify;
  while (!chain.done()) {
    ASSIGN_OR_RETURN(const v1::ReadAuditResponse page,
                     client.ReadAudit(chain.last(), ask));
    ask = false;
    for (const v1::AuditWitness& witness : page.witnesses()) {
      for (const v1::AuditHead& head : witness.heads()) {
        witnesses.Add(witness.agent(),
                      {head.term(), head.number(), head.hash()});
      }
    }
    for (const v1::AuditLine& line : page.lines()) {
      if (command.json) out << ToJson(line);
      if (!command.verify && !command.json) out << AuditText(line);
      witnesses.See(line);
    }
    const absl::Status checked = chain.Check(FromProto(page));
    if (!checked.ok()) {
      return absl::DataLossError(absl::StrCat(
          "the audit log was changed: ", absl::string_view(checked.message())));
    }
  }
  std::string seen;
  if (command.verify) {
    ASSIGN_OR_RETURN(seen, witnesses.Result());
  }
  if (!command.json) {
    out << chain.lines() << " lines, chain whole; newest hash "
        << absl::BytesToHexString(chain.hash()) << "\n"
        << seen;
  }
  return absl::OkStatus();
}

absl::Status NewBoundKey(const Command& command, std::ostream& out) {
  ASSIGN_OR_RETURN(const base::JobKeys from,
                   base::JobKeys::FromFile("--from", command.from_file));
  absl::StatusOr<std::string> text =
      from.NewBoundText(protocol::HostOf(command.bound_job));
  if (!text.ok()) {
    return absl::Status(
        text.status().code(),
        absl::StrCat("--from: ", command.from_file, " ",
                     absl::string_view(text.status().message())));
  }
  ASSIGN_OR_RETURN(const base::JobKeys made, base::JobKeys::FromText(*text));
  RETURN_IF_ERROR(base::WriteJobKey(command.new_file, *std::move(text)));
  out << "wrote " << command.new_file << ", key/"
      << absl::StrJoin(made.Taken(absl::Now()), " and key/") << ", of job "
      << command.bound_job
      << " alone; give it to that job's agents as --job-key-file: they are "
         "called NAME.."
      << command.bound_job << "\n";
  return absl::OkStatus();
}

absl::Status RotateKey(const Command& command, std::ostream& out) {
  const std::string& path = command.new_file;
  ASSIGN_OR_RETURN(const std::string text, base::ReadJobKeyFile("FILE", path));
  const absl::Time now = absl::Now();
  const absl::StatusOr<base::ChangedKey> changed =
      base::ChangeKey(text, now, command.at, command.until);
  if (!changed.ok()) {
    return absl::Status(
        changed.status().code(),
        absl::StrCat("FILE: ", path, " ",
                     absl::string_view(changed.status().message())));
  }
  RETURN_IF_ERROR(base::ReplaceJobKeyFile(path, changed->text));
  using base::UtcText;
  out << "changed " << path << ": key/" << changed->new_id
      << " is taken at once and shown from " << UtcText(command.at) << ", key/"
      << changed->old_id << " is taken until " << UtcText(command.until)
      << "; bring it to every machine of the job before " << UtcText(command.at)
      << ", and make keys of one job alone of it anew. Daemons read it again "
         "by themselves\n";
  return absl::OkStatus();
}

}  // namespace

absl::Status Run(const Command& command, AdminClient& client, std::ostream& out,
                 std::ostream& err) {
  // Of a call whose answer says nothing.
  const auto say = [&](const auto&... words) {
    out << (command.json ? "{}" : absl::StrCat(words...)) << "\n";
  };
  if (command.name == "new-key") {
    if (!command.bound_job.empty()) return NewBoundKey(command, out);
    RETURN_IF_ERROR(base::WriteNewJobKey(command.new_file));
    out << "wrote " << command.new_file
        << "; give it to every daemon of the job as --job-key-file\n";
  } else if (command.name == "rotate-key") {
    return RotateKey(command, out);
  } else if (command.name == "jobs") {
    ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs, client.ListJobs());
    out << (command.json ? ToJson(jobs) : JobsTable(jobs));
  } else if (command.name == "job") {
    ASSIGN_OR_RETURN(const v1::JobState job, client.GetJob(command.group));
    out << (command.json ? ToJson(job) : JobDetails(job));
  } else if (command.name == "agents" || command.name == "links") {
    ASSIGN_OR_RETURN(const v1::ListAgentsResponse agents, client.ListAgents());
    out << (command.json              ? ToJson(agents)
            : command.name == "links" ? LinksTable(agents)
                                      : AgentsTable(agents));
  } else if (command.name == "plan") {
    ASSIGN_OR_RETURN(const v1::ListJobsResponse jobs, client.ListJobs());
    out << (command.json ? ToJson(jobs) : PlanTable(jobs));
  } else if (command.name == "masks" || command.name == "decisions") {
    ASSIGN_OR_RETURN(const v1::JobState job, client.GetJob(command.group));
    out << (command.json              ? ToJson(job)
            : command.name == "masks" ? MasksText(job)
                                      : DecisionsText(job, command.why));
  } else if (command.name == "drain") {
    ASSIGN_OR_RETURN(const v1::DrainResponse done,
                     client.Drain(command.who, command.force));
    out << (command.json ? ToJson(done) : DrainedText(command.who, done));
  } else if (command.name == "undrain") {
    RETURN_IF_ERROR(client.Undrain(command.who));
    say("undrained ", command.who,
        ": it takes trainers again; start its launch again");
  } else if (command.name == "backup") {
    ASSIGN_OR_RETURN(const v1::BackupResponse done,
                     client.Backup(command.file));
    out << (command.json
                ? ToJson(done)
                : absl::StrCat("wrote ", done.path(),
                               " at the coordinator; bring it elsewhere, and "
                               "keep it secret\n"));
  } else if (command.name == "audit") {
    return Audit(command, client, out);
  } else if (command.name == "forget") {
    const std::string& job = command.group.job();
    RETURN_IF_ERROR(client.ForgetJob(job));
    say("forgot the state of job ", job,
        ": its next launch begins anew, and who comes back with the old "
        "state is refused");
  } else if (command.name == "evict") {
    ASSIGN_OR_RETURN(const v1::EvictResponse done, client.Evict(command.who));
    out << (command.json ? ToJson(done) : EvictedText(command.who, done));
  } else if (command.name == "readmit") {
    RETURN_IF_ERROR(client.Readmit(command.who));
    say("readmitted ", command.who);
  } else if (command.name == "watch") {
    return Watch(command, client, out, err);
  } else {
    ASSIGN_OR_RETURN(const v1::JobState job,
                     client.SetPin(command.group, command.pin));
    out << (command.json ? ToJson(job) : PinText(job));
  }
  return absl::OkStatus();
}

}  // namespace pactrain::coordinator
