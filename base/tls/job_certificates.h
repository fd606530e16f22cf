// The certificate, key and CA of one program of a job, made of the job's key:
// files in this process's memory, so that what reads certificates from files
// reads these.
//
// The certificate holds for kLifetime from kBackdate ago, so clocks may differ
// by a day, and is made anew every kRenewEvery. A new file takes the old one's
// place as a whole. While a job's key is changed (job_keys.h), the key's file
// is read anew within a few seconds, once it was found twice as it is, and what
// is made follows its times; one that cannot be used leaves all as it is, with
// a warning.
//
// Thread-safe.
#ifndef PACTRAIN_BASE_TLS_JOB_CERTIFICATES_H_
#define PACTRAIN_BASE_TLS_JOB_CERTIFICATES_H_

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/tls/job_keys.h"
#include "base/tls/tls_files.h"

namespace pactrain::base {

class JobCertificates {
 public:
  static constexpr absl::Duration kBackdate = absl::Hours(24);
  static constexpr absl::Duration kLifetime = absl::Hours(14 * 24);
  static constexpr absl::Duration kRenewEvery = absl::Hours(24);

  struct Options {
    std::string file = {};  // Of the keys, read anew; empty: it is not.
    absl::Duration renew_every = kRenewEvery;
    absl::Duration look_every = absl::Seconds(1);  // At file and times.
  };
  // Internal: OpenSSL failed, or the system gave no memory.
  static absl::StatusOr<std::shared_ptr<JobCertificates>> Create(
      JobKeys keys, std::string uri, Options options);
  static absl::StatusOr<std::shared_ptr<JobCertificates>> Create(
      JobKeys keys, std::string uri) {
    return Create(std::move(keys), std::move(uri), Options());
  }
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

  JobCertificates(JobKeys keys, std::string uri, Options options)
      : keys_(std::move(keys)),
        uri_(std::move(uri)),
        options_(std::move(options)) {}
  // Makes what is out of date.
  absl::Status Renew(absl::Time now);
  void ReadAgain();
  void Start();
  void RenewUntilStopped();

  JobKeys keys_;  // All of these are of the thread, once there is one.
  std::string found_, taken_;  // Digests of the file, as it was found and read.
  std::string shown_;          // The key that the certificate is made of.
  std::vector<std::string> taken_keys_;
  bool warned_ = false;  // That it could not be renewed.

  const std::string uri_;
  const Options options_;
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
