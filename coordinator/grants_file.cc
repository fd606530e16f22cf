#include "coordinator/grants_file.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "config/settings.h"
#include "config/small_file.h"
#include "config/yaml.h"
#include "pactrain/v1/config.pb.h"

namespace pactrain::coordinator {
namespace {

absl::StatusOr<Grants> Parse(const std::string& contents,
                             const std::string& path) {
  v1::PolicyConfig config;
  config::Settings settings(config);
  RETURN_IF_ERROR(config::ReadYaml(contents, path, settings));
  return Grants::Of({{config.run().begin(), config.run().end()},
                     {config.see().begin(), config.see().end()},
                     {config.change().begin(), config.change().end()},
                     {config.sites().begin(), config.sites().end()},
                     {config.deny().begin(), config.deny().end()}},
                    path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrantsFile>> GrantsFile::Open(
    const std::string& path) {
  std::unique_ptr<GrantsFile> file(new GrantsFile(path));
  ASSIGN_OR_RETURN(file->taken_, config::ReadSmallFile(path));
  file->found_ = file->taken_;
  ASSIGN_OR_RETURN(Grants grants, Parse(file->taken_, path));
  file->grants_ = std::make_shared<const Grants>(std::move(grants));
  return file;
}

std::shared_ptr<const Grants> GrantsFile::Get(absl::Duration now) {
  if (now - looked_ < kLookEvery) return grants_;
  looked_ = now;
  const absl::StatusOr<std::string> contents = config::ReadSmallFile(path_);
  // What cannot be read is one state of the file, too.
  std::string found =
      contents.ok() ? *contents : std::string(contents.status().message());
  std::swap(found, found_);
  if (found_ != found || found_ == taken_) return grants_;
  taken_ = found_;
  absl::StatusOr<Grants> grants =
      contents.ok() ? Parse(*contents, path_) : contents.status();
  if (grants.ok()) {
    grants_ = std::make_shared<const Grants>(*std::move(grants));
    LOG_INFO("policy file {} read anew", path_);
  } else {
    LOG_WARN("{}; the policy that was read before stays in force",
             std::string(grants.status().message()));
  }
  return grants_;
}

}  // namespace pactrain::coordinator
