#include "coordinator/crl_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/utc_text.h"

namespace pactrain::coordinator {
namespace {

constexpr absl::Duration kWarnEvery = absl::Hours(24);

}  // namespace

absl::StatusOr<std::unique_ptr<CrlFile>> CrlFile::Open(const std::string& path,
                                                       const std::string& ca) {
  ASSIGN_OR_RETURN(WatchedFile lists, WatchedFile::Open(path));
  ASSIGN_OR_RETURN(WatchedFile cas, WatchedFile::Open(ca));
  std::unique_ptr<CrlFile> file(new CrlFile(std::move(lists), std::move(cas)));
  ASSIGN_OR_RETURN(base::RevokedCertificates revoked, file->Parse());
  file->revoked_ =
      std::make_shared<const base::RevokedCertificates>(std::move(revoked));
  return file;
}

absl::StatusOr<base::RevokedCertificates> CrlFile::Parse() const {
  absl::StatusOr<base::RevokedCertificates> revoked =
      base::RevokedCertificates::Of(lists_, cas_);
  if (revoked.ok()) return revoked;
  return absl::Status(
      revoked.status().code(),
      absl::StrCat(file_.path(), ": ",
                   absl::string_view(revoked.status().message())));
}

std::shared_ptr<const base::RevokedCertificates> CrlFile::Get(
    absl::Duration now, absl::Time wall) {
  const auto lists = file_.News(now), cas = ca_.News(now);
  if (lists || cas) {
    absl::Status unread;
    const auto take = [&](const auto& news, std::string& kept) {
      if (!news) return;
      if (news->ok()) {
        kept = **news;
      } else {
        unread = news->status();
      }
    };
    take(lists, lists_);
    take(cas, cas_);
    absl::StatusOr<base::RevokedCertificates> revoked =
        unread.ok() ? Parse() : unread;
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
        file_.path(), base::UtcText(revoked_->until()));
  }
  return revoked_;
}

}  // namespace pactrain::coordinator
