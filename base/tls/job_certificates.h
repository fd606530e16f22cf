// The certificate, key and CA of one program of a job, made of the job's key:
// files in this process's memory, so that what reads certificates from files
// reads these.
//
// The certificate holds for kLifetime from kBackdate ago, so clocks may differ
// by a day, and is made anew every kRenewEvery. A new file takes the old one's
// place as a whole.
//
// Thread-safe.
#ifndef PACTRAIN_BASE_TLS_JOB_CERTIFICATES_H_
#define PACTRAIN_BASE_TLS_JOB_CERTIFICATES_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/tls/job_key.h"
#include "base/tls/tls_files.h"

namespace pactrain::base {

class JobCertificates {
 public:
  static constexpr absl::Duration kBackdate = absl::Hours(24);
  static constexpr absl::Duration kLifetime = absl::Hours(14 * 24);
  static constexpr absl::Duration kRenewEvery = absl::Hours(24);

  // Internal: OpenSSL failed, or the system gave no memory.
  static absl::StatusOr<std::shared_ptr<JobCertificates>> Create(
      JobKey key, std::string uri, absl::Duration renew_every = kRenewEvery);
  ~JobCertificates();

  // Their names hold in this process only, and as long as this lives.
  const TlsFiles& files() const { return files_; }

 private:
  // A file without a name in a folder.
  class MemoryFile {
   public:
    ~MemoryFile();
    // Its name stays. Internal: the system gave no memory.
    absl::Status Write(const std::string& text);
    std::string name() const;

   private:
    int fd_ = -1;
  };

  JobCertificates(JobKey key, std::string uri, absl::Duration renew_every)
      : key_(std::move(key)), uri_(std::move(uri)), renew_every_(renew_every) {}
  absl::Status Renew();
  void Start();
  void RenewUntilStopped();

  const JobKey key_;
  const std::string uri_;
  const absl::Duration renew_every_;
  TlsFiles files_;
  MemoryFile ca_;
  MemoryFile leaf_;  // Certificate and private key.
  absl::Time renewed_;
  Mutex mutex_;
  CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_JOB_CERTIFICATES_H_
