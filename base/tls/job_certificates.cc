#include "base/tls/job_certificates.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/tls/chain_hash.h"

namespace pactrain::base {
namespace {

// A clock that was set, or a machine that slept, is seen so soon.
constexpr absl::Duration kLookEvery = absl::Minutes(10);

}  // namespace

JobCertificates::MemoryFile::~MemoryFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status JobCertificates::MemoryFile::Write(const std::string& text) {
  const int fresh = memfd_create("pactrain-certificates", MFD_CLOEXEC);
  const bool good =
      fresh >= 0 && fchmod(fresh, 0600) == 0 &&
      write(fresh, text.data(), text.size()) ==
          static_cast<ssize_t>(text.size()) &&
      // Who opens the name sees all of the old file or all of the new.
      (fd_ < 0 || dup3(fresh, fd_, O_CLOEXEC) == fd_);
  const int error = errno;
  if (good && fd_ < 0) {
    fd_ = fresh;
  } else if (fresh >= 0) {
    close(fresh);
  }
  if (good) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "no memory for the job's certificates: ", std::strerror(error)));
}

std::string JobCertificates::MemoryFile::name() const {
  return absl::StrCat("/proc/self/fd/", fd_);
}

absl::StatusOr<std::shared_ptr<JobCertificates>> JobCertificates::Create(
    JobKeys keys, std::string uri, Options options) {
  std::shared_ptr<JobCertificates> made(
      new JobCertificates(std::move(keys), std::move(uri), std::move(options)));
  RETURN_IF_ERROR(made->Renew(absl::Now()));
  // One file for both, so that none is ever read beside the other's old one.
  made->files_.cert = made->files_.key = made->leaf_.name();
  made->files_.ca = made->ca_.name();
  made->Start();
  return made;
}

JobCertificates::~JobCertificates() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
  }
  stopped_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

absl::Status JobCertificates::Renew(absl::Time now) {
  const std::vector<std::string> taken = keys_.Taken(now);
  if (taken != taken_keys_) {
    // Before anything is shown that only others take.
    ASSIGN_OR_RETURN(const std::string ca, keys_.CaPem(now));
    RETURN_IF_ERROR(ca_.Write(ca));
    const bool first = taken_keys_.empty();
    taken_keys_ = taken;
    if (!first || taken.size() > 1) {
      LOG_INFO("certificates of key/{} are taken",
               absl::StrJoin(taken, " and key/"));
    }
  }
  const JobKey& key = keys_.Shown(now);
  // Also after a clock went back.
  if (key.id() == shown_ &&
      absl::AbsDuration(now - renewed_) < options_.renew_every) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string leaf,
                   key.Issue(uri_, now - kBackdate, now + kLifetime));
  RETURN_IF_ERROR(leaf_.Write(leaf));
  if (!shown_.empty() && shown_ != key.id()) {
    LOG_INFO("the own certificate is of key/{} now", key.id());
  }
  shown_ = key.id();
  renewed_ = now;
  return absl::OkStatus();
}

void JobCertificates::ReadAgain() {
  if (options_.file.empty()) return;
  absl::StatusOr<std::string> text =
      ReadJobKeyFile("job-key-file", options_.file);
  // What cannot be read is one state of the file, too. No key is kept.
  std::string found =
      ChainHash("", {text.ok() ? *text : std::string(text.status().message())});
  std::swap(found, found_);
  if (found_ != found || found_ == taken_) return;
  const bool news = !taken_.empty();
  taken_ = found_;
  absl::StatusOr<JobKeys> keys =
      text.ok() ? JobKeys::FromText(*text) : text.status();
  if (text.ok()) OPENSSL_cleanse(text->data(), text->size());
  if (keys.ok() && keys->host() != keys_.host()) {
    keys = absl::InvalidArgumentError("is of another job");
  }
  if (keys.ok()) {
    keys_ = *std::move(keys);
    if (news) LOG_INFO("job key file {} read anew", options_.file);
  } else {
    LOG_WARN("job key file {}: {}; the keys that were read before stay",
             options_.file, std::string(keys.status().message()));
  }
}

void JobCertificates::Start() {
  // Signals are for the program's other threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { RenewUntilStopped(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void JobCertificates::RenewUntilStopped() {
  const absl::Duration look =
      options_.file.empty()
          ? std::min(kLookEvery, options_.renew_every)
          : std::min(options_.look_every, options_.renew_every);
  MutexLock lock(&mutex_);
  while (!stop_) {
    stopped_.WaitFor(&mutex_, look);
    if (stop_) return;
    ReadAgain();
    const absl::Status renewed = Renew(absl::Now());
    if (!renewed.ok() && !warned_) {
      LOG_WARN("the certificate of the job key stays the old one: {}",
               std::string(renewed.message()));
    }
    warned_ = !renewed.ok();
  }
}

}  // namespace pactrain::base
