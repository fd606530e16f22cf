#include "coordinator/grants_file.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "config/settings.h"
#include "config/yaml.h"
#include "pactrain/v1/config.pb.h"

namespace pactrain::coordinator {
namespace {

absl::StatusOr<Grants> Parse(const std::string& contents,
                             const std::string& path) {
  v1::PolicyConfig config;
  config::Settings settings(config);
  RETURN_IF_ERROR(config::ReadYaml(contents, path, settings));
  if (config.run().empty() && config.see().empty() && config.change().empty() &&
      config.deny().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": it has no rule of run, see, change or deny; to keep all out write "
        "deny: ['agent/*', 'operator*', 'reader*', 'job/*/*']"));
  }
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
  ASSIGN_OR_RETURN(WatchedFile watched, WatchedFile::Open(path));
  std::unique_ptr<GrantsFile> file(new GrantsFile(std::move(watched)));
  ASSIGN_OR_RETURN(Grants grants, Parse(file->file_.contents(), path));
  file->grants_ = std::make_shared<const Grants>(std::move(grants));
  return file;
}

std::shared_ptr<const Grants> GrantsFile::Get(absl::Duration now) {
  const auto news = file_.News(now);
  if (!news) return grants_;
  absl::StatusOr<Grants> grants =
      news->ok() ? Parse(**news, file_.path()) : news->status();
  if (grants.ok()) {
    grants_ = std::make_shared<const Grants>(*std::move(grants));
    LOG_INFO("policy file {} read anew", file_.path());
  } else {
    LOG_WARN("{}; the policy that was read before stays in force",
             std::string(grants.status().message()));
  }
  return grants_;
}

}  // namespace pactrain::coordinator
