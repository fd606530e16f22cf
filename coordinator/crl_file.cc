#include "coordinator/crl_file.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "config/small_file.h"

namespace pactrain::coordinator {
namespace {

constexpr absl::Duration kWarnEvery = absl::Hours(24);

}  // namespace

absl::StatusOr<std::unique_ptr<CrlFile>> CrlFile::Open(const std::string& path,
                                                       const std::string& ca) {
  ASSIGN_OR_RETURN(WatchedFile watched, WatchedFile::Open(path));
  std::unique_ptr<CrlFile> file(new CrlFile(std::move(watched), ca));
  ASSIGN_OR_RETURN(base::RevokedCertificates revoked,
                   file->Parse(file->file_.contents()));
  file->revoked_ =
      std::make_shared<const base::RevokedCertificates>(std::move(revoked));
  return file;
}

absl::StatusOr<base::RevokedCertificates> CrlFile::Parse(
    const std::string& contents) const {
  ASSIGN_OR_RETURN(const std::string ca, config::ReadSmallFile(ca_));
  absl::StatusOr<base::RevokedCertificates> revoked =
      base::RevokedCertificates::Of(contents, ca);
  if (revoked.ok()) return revoked;
  return absl::Status(
      revoked.status().code(),
      absl::StrCat(file_.path(), ": ",
                   absl::string_view(revoked.status().message())));
}

std::shared_ptr<const base::RevokedCertificates> CrlFile::Get(
    absl::Duration now, absl::Time wall) {
  if (const auto news = file_.News(now)) {
    absl::StatusOr<base::RevokedCertificates> revoked =
        news->ok() ? Parse(**news) : news->status();
    if (revoked.ok()) {
      revoked_ = std::make_shared<const base::RevokedCertificates>(
          *std::move(revoked));
      next_warning_ = absl::InfinitePast();
      LOG_INFO("CRL file {} read anew: {} certificates", file_.path(),
               revoked_->size());
    } else {
      LOG_WARN("{}; what was read before stays in force",
               std::string(revoked.status().message()));
    }
  }
  if (wall > revoked_->until() && wall >= next_warning_) {
    next_warning_ = wall + kWarnEvery;
    LOG_WARN(
        "a list in the CRL file {} is out of date since {}: what it lists "
        "stays "
        "denied, and what its CA took back since is not; bring a new one",
        file_.path(),
        absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", revoked_->until(),
                         absl::UTCTimeZone()));
  }
  return revoked_;
}

}  // namespace pactrain::coordinator
