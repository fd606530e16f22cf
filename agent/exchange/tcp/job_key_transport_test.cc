// The data plane where a job's key makes the certificates, and who tries to get
// into it without that key.
#include <fstream>

#include "absl/time/clock.h"
#include "agent/exchange/tcp/test_tls_transports.h"
#include "asio/write.hpp"
#include "base/status_matchers.h"
#include "base/tls/job_key.h"

namespace pactrain::agent {
namespace {

class JobKeyTransportTest : public TlsTransports {
 protected:
  base::TlsFiles Issue(const std::string& agent) const override {
    return base::IssueByJobKey('1', UriOf(agent));
  }
};

TEST_F(JobKeyTransportTest, AgentsOfOneKeyExchange) {
  StartExchange();
  ExpectExchangeGoesOn();
}

TEST_F(JobKeyTransportTest, sec_NoKeyIsRefused) {
  StartExchange();
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()),
                                         SSL_CTX_free);
  ExpectClientRefused(context.get(), "peer did not return a certificate");
  auto raw = DialRaw(*b_);
  asio::write(raw, asio::buffer(std::string(64, 'x')));
  EXPECT_TRUE(RunUntilClosed(raw));
  ExpectExchangeGoesOn();
}

TEST_F(JobKeyTransportTest, sec_join_wrong_job) {
  StartExchange();
  ExpectDiallerRefused(
      TakesBoth(base::IssueByJobKey('2', UriOf("a")), Issue("a")),
      "the job keys (or CAs) differ");
}

// Whichever of the two refuses the other's certificate, who dials says so in
// our words.
TEST_F(JobKeyTransportTest, TheDiallerSaysThatTheKeysDiffer) {
  b_ = MakeNode("b");
  const base::TlsFiles other = base::IssueByJobKey('2', UriOf("a"));
  const auto dial = [&](const base::TlsFiles& files, const std::string& words) {
    const auto a = MakeNode("a", files);
    b_->transport->SetPeers({a->AsPeer()});
    a->transport->SetPeers({b_->AsPeer()});
    EXPECT_TRUE(RunUntil([&] { return log_.Has(words); })) << log_.text();
    EXPECT_TRUE(log_.Has("data connection to agent b refused")) << log_.text();
    a->transport->SetPeers({});
  };
  dial(other,
       "its certificate is of another CA or job key: the job keys (or CAs) "
       "differ");
  dial(TakesBoth(other, Issue("a")),
       "it does not take this side's certificate: the job keys (or CAs) "
       "differ");
}

TEST_F(JobKeyTransportTest, sec_CertificateOfACaIsRefused) {
  StartExchange();
  ExpectDiallerRefused(TakesBoth(ca_.Issue("a", UriOf("a")), Issue("a")),
                       "the job keys (or CAs) differ");
}

TEST_F(JobKeyTransportTest, sec_join_expired) {
  StartExchange();
  const auto key = base::JobKey::FromText(std::string(64, '1'));
  ASSERT_OK(key);
  const absl::Time now = absl::Now();
  ASSERT_OK_AND_ASSIGN(
      const std::string pem,
      key->Issue(UriOf("a"), now - absl::Hours(2), now - absl::Hours(1)));
  const std::string path = base::MakeTestFolder("-old") + "/old.pem";
  std::ofstream(path) << pem;
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()),
                                         SSL_CTX_free);
  ASSERT_EQ(SSL_CTX_use_certificate_chain_file(context.get(), path.c_str()), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey_file(context.get(), path.c_str(),
                                        SSL_FILETYPE_PEM),
            1);
  ExpectClientRefused(context.get(), "certificate has expired");
}

// Who holds the key could make a certificate for the name itself; a message
// alone gives nobody another name.
TEST_F(JobKeyTransportTest, sec_AnotherAgentsNameInTheHelloIsRefused) {
  StartExchange();
  ExpectDiallerRefused(
      Issue("thief"),
      "calls itself agent a, but its certificate is of agent thief");
}

}  // namespace
}  // namespace pactrain::agent
