// A coordinator on loopback, from its journal to its port, for tests.
#ifndef PACTRAIN_COORDINATOR_RPC_TEST_SERVER_H_
#define PACTRAIN_COORDINATOR_RPC_TEST_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "base/connection_caps.h"
#include "base/mutex.h"
#include "base/test_folder.h"
#include "base/tls/tls_files.h"
#include "coordinator/driver/driver.h"
#include "coordinator/rpc/server.h"
#include "coordinator/store/sqlite_journal.h"
#include "gtest/gtest.h"

namespace pactrain::coordinator {

// The server stops before members of derived fixtures go. Without Start() there
// is none.
class ServerFixture : public ::testing::Test {
 protected:
  ServerFixture() : folder_(base::MakeTestFolder()) {}
  void TearDown() override { Stop(); }

  // Also again after Stop(): with what the state directory holds by then.
  void Start(const base::TlsFiles& tls = {},
             const base::ConnectionCaps::Limits& caps = Server::kCaps);
  void Stop();
  // As a policy file `policy.yaml` would; in force from the next tick on.
  void SetGrants(const Grants::Lists& lists);
  std::string state_dir() const { return folder_ + "/state"; }

  // To the server, whoever it says it is; without files in plain text.
  std::shared_ptr<grpc::Channel> ChannelOf(
      const base::TlsFiles& files = {}) const;
  // Of a call that ends within 20 s, whatever is broken.
  static std::unique_ptr<grpc::ClientContext> MakeContext();

  const std::string folder_;
  Options options_;  // Of the core.
  Server::Budgets budgets_ = Server::kBudgets;
  // As a CRL file would; null: there is none.
  std::function<std::shared_ptr<const base::RevokedCertificates>()> revoked_;
  std::unique_ptr<SqliteJournal> journal_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<Server> server_;

 private:
  std::shared_ptr<const Grants> grants();

  base::Mutex mu_;
  std::shared_ptr<const Grants> grants_ ABSL_GUARDED_BY(mu_) =
      std::make_shared<const Grants>();
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_RPC_TEST_SERVER_H_
