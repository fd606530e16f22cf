#include "base/tls/tls_choice.h"

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tls/job_certificates.h"

namespace pactrain::base {
namespace {

absl::StatusOr<JobKeys> ReadVariable(const std::string& text) {
  auto key = JobKeys::FromText(text);
  if (key.ok()) return key;
  return absl::Status(key.status().code(),
                      absl::StrCat(kJobKeyVariable, ": its value ",
                                   absl::string_view(key.status().message())));
}

absl::Status CheckOneIsGiven(const TlsFiles& files,
                             const std::string& job_key_file,
                             const std::string& variable,
                             const TlsNames& names) {
  std::vector<std::string> given;
  if (!job_key_file.empty()) given.push_back(names.job_key_file);
  if (!variable.empty()) given.push_back(kJobKeyVariable);
  if (!files.cert.empty() || !files.key.empty() || !files.ca.empty()) {
    given.push_back(!files.cert.empty()  ? names.cert
                    : !files.key.empty() ? names.key
                                         : names.ca);
  }
  if (given.size() < 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      given[0], ": given beside ", given[1],
      "; allowed is a job's key, from a file or from ", kJobKeyVariable,
      ", or certificates: leave out all but one"));
}

}  // namespace

absl::StatusOr<TlsFiles> ChooseTls(const TlsFiles& files,
                                   const std::string& job_key_file,
                                   const TlsNames& names, const UriOf& uri_of) {
  const char* const set = std::getenv(kJobKeyVariable);
  const std::string variable = set == nullptr ? "" : set;
  RETURN_IF_ERROR(CheckOneIsGiven(files, job_key_file, variable, names));
  if (job_key_file.empty() && variable.empty()) return files;
  auto keys = variable.empty()
                  ? JobKeys::FromFile(names.job_key_file, job_key_file)
                  : ReadVariable(variable);
  RETURN_IF_ERROR(keys.status());
  const std::string uri = uri_of(keys->host());
  JobCertificates::Options options;
  // Of an open descriptor nothing new comes: the key of daemons that end with
  // their job is never changed.
  if (!absl::StartsWith(job_key_file, "/proc/self/fd/")) {
    options.file = job_key_file;
  }
  ASSIGN_OR_RETURN(
      const std::shared_ptr<JobCertificates> certificates,
      JobCertificates::Create(*std::move(keys), uri, std::move(options)));
  TlsFiles made = certificates->files();
  made.keeper = certificates;
  return made;
}

absl::Status CheckProtected(const TlsFiles& files, const TlsNames& names,
                            bool plain_text_allowed) {
  if (files.given() || plain_text_allowed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      names.job_key_file,
      ": no key and no certificates are given, so every "
      "user of this machine could see and change all jobs; give "
      "--job-key-file=FILE (pactrain-admin new-key FILE makes one) or "
      "--tls-cert, --tls-key and --tls-ca; or, where all users of the machine "
      "are trusted, --insecure-local"));
}

}  // namespace pactrain::base
