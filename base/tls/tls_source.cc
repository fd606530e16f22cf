#include "base/tls/tls_source.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace pactrain::base {

absl::StatusOr<std::unique_ptr<TlsSource>> TlsSource::Open(
    const TlsFiles& files) {
  std::unique_ptr<TlsSource> source(new TlsSource(files));
  // Before they are read: what is written meanwhile is seen next time.
  source->stamp_ = source->Stamp();
  ASSIGN_OR_RETURN(source->context_, MakeTlsContext(files, {}));
  return source;
}

const TlsContext& TlsSource::Get() {
  std::string stamp = Stamp();
  if (stamp == stamp_) return context_;
  stamp_ = std::move(stamp);
  auto made = MakeTlsContext(files_, {});
  if (made.ok()) {
    context_ = *std::move(made);
    LOG_INFO("certificates were read again from {}", files_.cert);
  } else {
    LOG_WARN("the certificates in use stay: {}",
             std::string(made.status().message()));
  }
  return context_;
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
