#include "base/tls/tls_source.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace pactrain::base {

namespace {

constexpr absl::Duration kWarnEvery = absl::Hours(24);

}  // namespace

absl::StatusOr<std::unique_ptr<TlsSource>> TlsSource::Open(
    const TlsFiles& files) {
  std::unique_ptr<TlsSource> source(new TlsSource(files));
  // Before they are read: what is written meanwhile is seen next time.
  source->stamp_ = source->Stamp();
  RETURN_IF_ERROR(source->Load());
  return source;
}

absl::Status TlsSource::Load() {
  ASSIGN_OR_RETURN(context_, MakeTlsContext(files_, {}));
  lives_ = LivesOf(context_);
  anchors_ = AnchorsOf(context_);
  next_warning_ = absl::InfinitePast();
  return absl::OkStatus();
}

const TlsContext& TlsSource::Get(absl::Time now) {
  ReadAgainIfChanged();
  WarnOfTheEnd(now);
  return context_;
}

void TlsSource::ReadAgainIfChanged() {
  std::string stamp = Stamp();
  if (stamp == stamp_) return;
  stamp_ = std::move(stamp);
  const absl::Status loaded = Load();
  if (loaded.ok()) {
    LOG_INFO("certificates were read again from {}", files_.cert);
  } else {
    LOG_WARN("the certificates in use stay: {}", std::string(loaded.message()));
  }
}

void TlsSource::WarnOfTheEnd(absl::Time now) {
  if (now < next_warning_) return;
  for (const auto& [life, file] : {std::pair(&lives_.own, &files_.cert),
                                   std::pair(&lives_.ca, &files_.ca)}) {
    if (!life->EndsSoon(now)) continue;
    next_warning_ = now + kWarnEvery;
    LOG_WARN(
        "the certificate of {} {}, less than a fifth of its life: issue a new "
        "one; files may be rewritten while daemons run",
        *file, life->Text(now));
  }
}

std::string TlsSource::Stamp() const {
  std::string stamp;
  for (const std::string* file : {&files_.cert, &files_.key, &files_.ca}) {
    struct stat found = {};
    stat(file->c_str(), &found);  // Zeros: it is gone.
    absl::StrAppend(&stamp, found.st_dev, ":", found.st_ino, ":", found.st_size,
                    ":", found.st_mode, ":", found.st_ctim.tv_sec, ".",
                    found.st_ctim.tv_nsec, "|");
  }
  return stamp;
}

}  // namespace pactrain::base
