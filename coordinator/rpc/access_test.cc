// Who may call what, and who tries without the right certificate.
#include "coordinator/rpc/access.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/time/clock.h"
#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "asio/write.hpp"
#include "base/clock.h"
#include "base/log_capture.h"
#include "base/rpc/channel.h"
#include "base/rpc/credentials.h"
#include "base/status_matchers.h"
#include "base/tls/job_key.h"
#include "base/tls/test_certs.h"
#include "coordinator/rpc/test_server.h"
#include "protocol/limits.h"
#include "protocol/proto_convert.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using protocol::Role;
using ::testing::HasSubstr;

Peer PeerOf(Role role, const std::string& agent = "") {
  return protocol::Identity{role, agent};
}

TEST(CheckRight, sec_EachRoleHasItsRightsAndNoOther) {
  const std::vector<std::pair<Right, std::vector<Role>>> kAllowed = {
      {Right::kJoin, {Role::kAgent}},
      {Right::kRead, {Role::kReader, Role::kOperator}},
      {Right::kOperate, {Role::kOperator}}};
  for (const auto& [right, allowed] : kAllowed) {
    for (const Role role :
         {Role::kAgent, Role::kCoordinator, Role::kOperator, Role::kReader}) {
      const bool may =
          std::find(allowed.begin(), allowed.end(), role) != allowed.end();
      EXPECT_THAT(CheckRight(PeerOf(role), right),
                  StatusIs(may ? absl::StatusCode::kOk
                               : absl::StatusCode::kPermissionDenied,
                           ::testing::_))
          << PeerOf(role)->ToString();
    }
    EXPECT_OK(CheckRight(std::nullopt, right));
  }
}

TEST(CheckName, sec_AnAgentHasTheNameOfItsCertificate) {
  EXPECT_OK(CheckName(PeerOf(Role::kAgent, "a"), "a"));
  EXPECT_OK(CheckName(std::nullopt, "a"));
  EXPECT_THAT(CheckName(PeerOf(Role::kAgent, "b"), "a"),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("it calls itself agent a, and its certificate "
                                 "is of spiffe://pactrain/agent/b")));
}

// A server with TLS on loopback.
class AccessTest : public ServerFixture {
 protected:
  explicit AccessTest(const base::TlsFiles& files = {})
      : files_(files.given() ? files
                             : ca_.Issue("coordinator",
                                         "spiffe://pactrain/coordinator")) {}
  void SetUp() override { Start(files_); }

  using ServerFixture::ChannelOf;
  virtual base::TlsFiles Issue(const std::string& uri) const {
    return ca_.Issue("client", uri);
  }
  std::shared_ptr<grpc::Channel> ChannelOf(const std::string& uri) const {
    return ChannelOf(Issue(uri));
  }
  static grpc::Status ListJobs(const std::shared_ptr<grpc::Channel>& channel) {
    v1::ListJobsResponse response;
    return v1::Admin::NewStub(channel)->ListJobs(MakeContext().get(), {},
                                                 &response);
  }
  static grpc::Status SetPin(const std::shared_ptr<grpc::Channel>& channel) {
    v1::SetPinRequest request;
    request.mutable_group()->set_job("nobody");
    v1::SetPinResponse response;
    return v1::Admin::NewStub(channel)->SetPin(MakeContext().get(), request,
                                               &response);
  }
  // An agent's stream that says hello under this name, up to its end or its
  // Welcome.
  static grpc::Status SayHello(const std::shared_ptr<grpc::Channel>& channel,
                               const std::string& name) {
    const auto stub = v1::Coordinator::NewStub(channel);
    const auto context = MakeContext();
    const auto stream = stub->AgentStream(context.get());
    stream->Write(protocol::ToProto(protocol::AgentMessage(protocol::AgentHello{
        name, base::DigestOf(name), "site", "127.0.0.1:9", "t", ""})));
    v1::CoordinatorMessage answer;
    if (stream->Read(&answer)) return grpc::Status::OK;
    return stream->Finish();
  }
  // Everybody of ours is still served.
  void ExpectServes() {
    const grpc::Status status =
        SayHello(ChannelOf("spiffe://pactrain/agent/good"), "good");
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  // gRPC tries again by itself, so one call may be several handshakes.
  void ExpectNoConnection(const std::shared_ptr<grpc::Channel>& channel,
                          const std::string& why) {
    const std::string words =
        "refused a connection from 127.0.0.1: TLS handshake: " + why;
    const grpc::Status status = ListJobs(channel);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE)
        << status.error_message();
    EXPECT_TRUE(log_.WaitFor(words)) << log_.text();
    ListJobs(channel);
    ExpectServes();
    EXPECT_EQ(log_.Count(words), 1) << log_.text();
  }
  asio::ip::tcp::socket DialRaw() {
    asio::ip::tcp::socket socket(io_);
    socket.connect(
        {asio::ip::make_address("127.0.0.1"), server_->address().port});
    return socket;
  }
  static bool EndsSoon(asio::ip::tcp::socket& socket, int seconds = 20) {
    const timeval patience = {seconds, 0};
    setsockopt(socket.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &patience,
               sizeof patience);
    char bytes[4096];
    while (true) {
      const ssize_t got = recv(socket.native_handle(), bytes, sizeof bytes, 0);
      if (got <= 0) return got == 0 || errno != EAGAIN;
    }
  }

  base::LogCapture log_;
  const base::TestCa ca_{folder_};
  const base::TlsFiles files_;
  asio::io_context io_;
};

TEST_F(AccessTest, sec_admin_unauth_ReaderMayNotPin) {
  const auto channel = ChannelOf("spiffe://pactrain/reader");
  EXPECT_TRUE(ListJobs(channel).ok());
  for (int tries = 0; tries < 2; ++tries) {
    const grpc::Status status = SetPin(channel);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_THAT(status.error_message(), HasSubstr("this is for an operator"));
  }
  EXPECT_EQ(log_.Count("refused SetPin from 127.0.0.1"), 1) << log_.text();
}

TEST_F(AccessTest, OperatorMayPin) {
  // There is no such job, which only an operator is told.
  EXPECT_EQ(SetPin(ChannelOf("spiffe://pactrain/operator")).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(AccessTest, sec_admin_unauth_AgentMayNotCallIt) {
  const auto channel = ChannelOf("spiffe://pactrain/agent/a");
  EXPECT_EQ(ListJobs(channel).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(SetPin(channel).error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(AccessTest, sec_AnotherAgentsNameInHelloIsRefused) {
  const auto channel = ChannelOf("spiffe://pactrain/agent/thief");
  const grpc::Status status = SayHello(channel, "a");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(),
              HasSubstr("it calls itself agent a, and its certificate is of "
                        "spiffe://pactrain/agent/thief"));
  EXPECT_TRUE(log_.WaitFor("refused Hello from 127.0.0.1"));
  EXPECT_TRUE(SayHello(channel, "thief").ok());
}

TEST_F(AccessTest, sec_OperatorIsNoAgent) {
  const grpc::Status status =
      SayHello(ChannelOf("spiffe://pactrain/operator"), "a");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(AccessTest, sec_CertificateOfNobodyIsRefused) {
  ExpectNoConnection(ChannelOf("https://example.org"),
                     "its certificate is of 'https://example.org'");
}

TEST_F(AccessTest, sec_join_wrong_ca) {
  const base::TestCa other(base::MakeTestFolder("-other"));
  base::TlsFiles files = other.Issue("operator", "spiffe://pactrain/operator");
  files.ca = files_.ca;  // It would take the coordinator.
  ExpectNoConnection(ChannelOf(files),
                     "its certificate is of another CA or job key");
}

TEST_F(AccessTest, sec_join_expired) {
  ExpectNoConnection(
      ChannelOf(ca_.Issue(
          "old",
          base::TestCa::Leaf{{"spiffe://pactrain/operator"}, -7200, -3600})),
      "its certificate has expired");
}

TEST_F(AccessTest, sec_NoCertificateIsRefused) {
  grpc::SslCredentialsOptions options;
  std::stringstream ca;
  ca << std::ifstream(files_.ca).rdbuf();
  options.pem_root_certs = ca.str();
  ExpectNoConnection(grpc::CreateChannel(server_->address().ToString(),
                                         grpc::SslCredentials(options)),
                     "it has no certificate");
}

TEST_F(AccessTest, sec_PlainHttp2IsRefused) {
  ExpectNoConnection(grpc::CreateChannel(server_->address().ToString(),
                                         grpc::InsecureChannelCredentials()),
                     "it speaks something else than TLS");
}

TEST_F(AccessTest, sec_PlainTcpIsRefused) {
  auto raw = DialRaw();
  asio::write(raw, asio::buffer(std::string(64, 'x')));
  EXPECT_TRUE(EndsSoon(raw));
  ExpectServes();
}

TEST_F(AccessTest, sec_limits_HandshakeSeconds) {
  auto raw = DialRaw();
  ExpectServes();
  EXPECT_TRUE(EndsSoon(raw, 4 * protocol::kHandshakeSeconds));
  EXPECT_TRUE(
      log_.WaitFor("from 127.0.0.1: TLS handshake: no handshake within 5s"));
}

// Also of a file that was rewritten meanwhile.
TEST_F(AccessTest, sec_cert_life_alarm_OfTheCoordinator) {
  ASSERT_TRUE(server_->certificates().has_value());
  EXPECT_GT(server_->certificates()->own.until - absl::Now(),
            absl::Minutes(50));
  ca_.Issue("coordinator",
            base::TestCa::Leaf{{"spiffe://pactrain/coordinator"}, -3600, 600});
  EXPECT_TRUE(log_.WaitFor("coordinator.pem is valid for 0 hours"))
      << log_.text();
  EXPECT_TRUE(log_.Has("issue a new one")) << log_.text();
  EXPECT_LT(server_->certificates()->own.until - absl::Now(),
            absl::Minutes(11));
}

TEST_F(AccessTest, sec_OlderTlsIsRefused) {
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()),
                                         SSL_CTX_free);
  SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()),
                                                      SSL_free);
  auto raw = DialRaw();
  SSL_set_fd(ssl.get(), raw.native_handle());
  EXPECT_NE(SSL_connect(ssl.get()), 1);
  EXPECT_TRUE(EndsSoon(raw));
  EXPECT_TRUE(log_.WaitFor("its hello is not of TLS 1.3"));
  ExpectServes();
}

TEST_F(AccessTest, sec_NobodyButACoordinatorIsTakenForOne) {
  const auto channel = base::MakeChannel(
      server_->address().ToString(),
      base::MakeChannelCredentials(
          ca_.Issue("a", "spiffe://pactrain/agent/a"),
          [](const std::vector<std::string>& uris) {
            return protocol::CheckIdentity(uris, {Role::kOperator, ""});
          }),
      -1);
  EXPECT_EQ(ListJobs(channel).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(AccessTest, RewrittenCertificatesHoldForNewConnections) {
  EXPECT_TRUE(ListJobs(ChannelOf("spiffe://pactrain/reader")).ok());
  ca_.Issue("coordinator", "spiffe://pactrain/agent/changed");
  // Whom the next connections meet.
  const base::TlsFiles files = ca_.Issue("r", "spiffe://pactrain/reader");
  const absl::Duration end = base::MonotonicNow() + absl::Minutes(2);
  bool changed = false;
  while (!changed && base::MonotonicNow() < end) {
    const auto channel = base::MakeChannel(
        server_->address().ToString(),
        base::MakeChannelCredentials(
            files,
            [](const std::vector<std::string>& uris) {
              return protocol::CheckIdentity(uris, {Role::kAgent, "changed"});
            }),
        -1);
    changed = ListJobs(channel).ok();
  }
  EXPECT_TRUE(changed);
}

// The same where a job's key makes the certificates.
class JobKeyAccessTest : public AccessTest {
 protected:
  JobKeyAccessTest()
      : AccessTest(base::IssueByJobKey('1', "spiffe://pactrain/coordinator")) {}
  base::TlsFiles Issue(const std::string& uri) const override {
    return base::IssueByJobKey('1', uri);
  }
};

TEST_F(JobKeyAccessTest, WhoHoldsTheKeyMayJoinAndOperate) {
  ExpectServes();
  EXPECT_TRUE(ListJobs(ChannelOf("spiffe://pactrain/operator")).ok());
  EXPECT_EQ(SetPin(ChannelOf("spiffe://pactrain/operator")).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(JobKeyAccessTest, sec_NoKeyIsRefused) {
  grpc::SslCredentialsOptions options;
  std::stringstream ca;
  ca << std::ifstream(files_.ca).rdbuf();
  options.pem_root_certs = ca.str();
  ExpectNoConnection(grpc::CreateChannel(server_->address().ToString(),
                                         grpc::SslCredentials(options)),
                     "it has no certificate");
}

TEST_F(JobKeyAccessTest, sec_PlainHttp2IsRefused) {
  ExpectNoConnection(grpc::CreateChannel(server_->address().ToString(),
                                         grpc::InsecureChannelCredentials()),
                     "it speaks something else than TLS");
}

TEST_F(JobKeyAccessTest, sec_join_wrong_job) {
  base::TlsFiles files = base::IssueByJobKey('2', "spiffe://pactrain/operator");
  files.ca = files_.ca;  // It would take the coordinator.
  ExpectNoConnection(ChannelOf(files),
                     "its certificate is of another CA or job key");
}

// What a client of ours is told, beside what the coordinator logs.
void ExpectTrouble(const grpc::Status& status, bool tls,
                   const std::string& what) {
  const auto trouble = base::TlsTroubleOf(status.error_message(), tls);
  ASSERT_TRUE(trouble.has_value()) << status.error_message();
  EXPECT_THAT(trouble->what, HasSubstr(what));
  EXPECT_FALSE(trouble->to_do.empty());
}

TEST_F(JobKeyAccessTest, WhoHoldsAnotherKeyIsToldThatKeysDiffer) {
  const auto other = base::IssueByJobKey('2', "spiffe://pactrain/operator");
  ExpectTrouble(ListJobs(ChannelOf(other)), true,
                "the job keys (or CAs) differ");
}

TEST_F(JobKeyAccessTest, WhoHoldsNoKeyIsToldToGiveOne) {
  ExpectTrouble(ListJobs(ChannelOf(base::TlsFiles{})), false,
                "most likely it speaks TLS");
}

TEST_F(JobKeyAccessTest, WhoIsRefusedByTheCoordinatorIsToldSo) {
  auto files = base::IssueByJobKey('2', "spiffe://pactrain/operator");
  files.ca = files_.ca;
  ExpectTrouble(ListJobs(ChannelOf(files)), true,
                "hung up on this side's certificate");
}

TEST_F(JobKeyAccessTest, WhoHoldsAKeyForPlainTextIsToldSo) {
  Stop();
  Start();
  ExpectTrouble(ListJobs(ChannelOf("spiffe://pactrain/operator")), true,
                "it speaks plain text");
}

TEST_F(JobKeyAccessTest, OtherTroubleIsLeftAsItIs) {
  const auto channel = ChannelOf("spiffe://pactrain/operator");
  Stop();
  EXPECT_FALSE(base::TlsTroubleOf(ListJobs(channel).error_message(), true));
  EXPECT_FALSE(base::TlsTroubleOf(ListJobs(channel).error_message(), false));
}

// It does not take the coordinator either, and hangs up first.
TEST_F(JobKeyAccessTest, sec_WhoHoldsAnotherKeyIsNamed) {
  ExpectNoConnection(
      ChannelOf(base::IssueByJobKey('2', "spiffe://pactrain/operator")),
      "it hung up on this side's certificate: its CA or job key is another");
}

TEST_F(JobKeyAccessTest, sec_CertificateOfACaIsRefused) {
  base::TlsFiles files = ca_.Issue("operator", "spiffe://pactrain/operator");
  files.ca = files_.ca;
  ExpectNoConnection(ChannelOf(files),
                     "its certificate is of another CA or job key");
}

TEST_F(JobKeyAccessTest, sec_join_expired) {
  const auto key = base::JobKey::FromText(std::string(64, '1'));
  ASSERT_OK(key);
  const absl::Time now = absl::Now();
  ASSERT_OK_AND_ASSIGN(const std::string pem,
                       key->Issue("spiffe://pactrain/operator",
                                  now - absl::Hours(2), now - absl::Hours(1)));
  const std::string path = folder_ + "/old.pem";
  std::ofstream(path) << pem;
  ExpectNoConnection(ChannelOf(base::TlsFiles{path, path, files_.ca}),
                     "its certificate has expired");
}

TEST_F(JobKeyAccessTest, sec_AnotherAgentsNameInHelloIsRefused) {
  const auto channel = ChannelOf("spiffe://pactrain/agent/thief");
  const grpc::Status status = SayHello(channel, "a");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(),
              HasSubstr("its certificate is of "
                        "spiffe://pactrain/agent/thief"));
}

TEST_F(JobKeyAccessTest, sec_NobodyButACoordinatorIsTakenForOne) {
  const auto channel = base::MakeChannel(
      server_->address().ToString(),
      base::MakeChannelCredentials(
          Issue("spiffe://pactrain/agent/a"),
          [](const std::vector<std::string>& uris) {
            return protocol::CheckIdentity(uris, {Role::kOperator, ""});
          }),
      -1);
  EXPECT_EQ(ListJobs(channel).error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace pactrain::coordinator
