#include "base/tls/job_certificates.h"

#include <fcntl.h>
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
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/status_macros.h"

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
    JobKey key, std::string uri, absl::Duration renew_every) {
  std::shared_ptr<JobCertificates> made(
      new JobCertificates(std::move(key), std::move(uri), renew_every));
  ASSIGN_OR_RETURN(const std::string ca, made->key_.CaPem());
  RETURN_IF_ERROR(made->ca_.Write(ca));
  RETURN_IF_ERROR(made->Renew());
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

absl::Status JobCertificates::Renew() {
  const absl::Time now = absl::Now();
  ASSIGN_OR_RETURN(const std::string leaf,
                   key_.Issue(uri_, now - kBackdate, now + kLifetime));
  RETURN_IF_ERROR(leaf_.Write(leaf));
  renewed_ = now;
  return absl::OkStatus();
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
  MutexLock lock(&mutex_);
  while (!stop_) {
    stopped_.WaitFor(&mutex_, std::min(kLookEvery, renew_every_));
    // Also after a clock went back.
    if (stop_ || absl::AbsDuration(absl::Now() - renewed_) < renew_every_) {
      continue;
    }
    const absl::Status renewed = Renew();
    if (!renewed.ok()) {
      LOG_WARN("the certificate of the job key stays the old one: {}",
               std::string(renewed.message()));
    }
  }
}

}  // namespace pactrain::base
