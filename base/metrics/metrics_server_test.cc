#include "base/metrics/metrics_server.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <fstream>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "asio/ip/tcp.hpp"
#include "asio/read.hpp"
#include "asio/ssl.hpp"
#include "asio/write.hpp"
#include "base/metrics/bearer_token.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "base/tls/test_certs.h"
#include "gtest/gtest.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace pactrain::base {
namespace {

using asio::ip::tcp;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kToken[] = "0123456789abcdef";

class OneGauge : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    prometheus::MetricFamily family;
    family.name = "secret";
    family.type = prometheus::MetricType::Gauge;
    family.metric.emplace_back().gauge.value = 42;
    return {family};
  }
};

tcp::endpoint EndpointOf(const HostPort& address) {
  return {asio::ip::make_address(address.host), address.port};
}

template <typename Stream>
std::string Ask(Stream& stream, const std::string& authorization,
                const std::string& path = "/metrics") {
  std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: x\r\n");
  if (!authorization.empty()) {
    request += "Authorization: " + authorization + "\r\n";
  }
  asio::write(stream, asio::buffer(request + "\r\n"));
  std::string answer;
  asio::error_code end;
  asio::read(stream, asio::dynamic_buffer(answer), end);
  return answer;
}

class MetricsServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = MakeTestFolder();
    token_file_ = folder_ + "/token";
    WriteToken(kToken);
  }
  void WriteToken(const std::string& token) {
    std::ofstream(token_file_) << token << "\n";
    chmod(token_file_.c_str(), 0600);
  }
  void Start(const TlsFiles& tls = {}) {
    const auto on_refused = [this](const std::string& source,
                                   const std::string& path,
                                   absl::string_view why) {
      refused_.push_back(source + " " + path + ": " + std::string(why));
    };
    ASSERT_OK_AND_ASSIGN(
        server_,
        MetricsServer::Start({"127.0.0.1", 0}, std::make_shared<OneGauge>(), {},
                             {token_file_, tls}, on_refused));
  }
  std::string Get(const std::string& authorization,
                  const std::string& path = "/metrics") {
    tcp::socket socket(io_);
    socket.connect(EndpointOf(server_->address()));
    return Ask(socket, authorization, path);
  }
  std::string GetByTls(const std::string& authorization) {
    asio::ssl::context context(asio::ssl::context::tls_client);
    context.load_verify_file(tls_.ca);
    context.set_verify_mode(asio::ssl::verify_peer);
    asio::ssl::stream<tcp::socket> stream(io_, context);
    stream.lowest_layer().connect(EndpointOf(server_->address()));
    stream.handshake(asio::ssl::stream_base::client);
    return Ask(stream, authorization);
  }

  std::string folder_, token_file_;
  TlsFiles tls_;
  asio::io_context io_;
  std::vector<std::string> refused_;  // Server threads write it: ask after.
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, sec_metrics_token_WhoShowsItReads) {
  Start();
  EXPECT_THAT(Get(std::string("Bearer ") + kToken), HasSubstr("secret 42\n"));
  EXPECT_TRUE(refused_.empty());
}

TEST_F(MetricsServerTest, AProbeNeedsNoTokenAndIsToldNothingElse) {
  Start();
  EXPECT_THAT(Get("", "/healthz"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(Get("", "/healthz"), testing::EndsWith("\r\n\r\nok\n"));
  for (const char* path : {"/healthz/", "/healthz/metrics"}) {
    EXPECT_EQ(Get("", path).find(" 200 "), std::string::npos) << path;
  }
  EXPECT_TRUE(refused_.empty());
}

TEST_F(MetricsServerTest, sec_metrics_token_WhoDoesNotGets401AndIsTold) {
  Start();
  for (const char* wrong :
       {"", "Basic 0123456789abcdef", "Bearer 0123456789abcdeX", "Bearer ",
        "Bearer 0123456789abcdef0"}) {
    const std::string answer = Get(wrong);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 401 ")) << wrong;
    EXPECT_EQ(answer.find("secret"), answer.npos) << wrong;
  }
  server_.reset();
  EXPECT_THAT(
      refused_,
      ElementsAre("127.0.0.1 /metrics: it showed no bearer token",
                  "127.0.0.1 /metrics: what it showed is no bearer token",
                  "127.0.0.1 /metrics: its bearer token is another one",
                  "127.0.0.1 /metrics: its bearer token is another one",
                  "127.0.0.1 /metrics: its bearer token is another one"));
}

TEST_F(MetricsServerTest,
       sec_metrics_token_ANewOneCountsAtOnceAndNoneLetsNobodyIn) {
  Start();
  WriteToken("another-token-of-ours");
  EXPECT_THAT(Get(std::string("Bearer ") + kToken), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(Get("Bearer another-token-of-ours"), HasSubstr("secret 42"));
  std::filesystem::remove(token_file_);
  EXPECT_THAT(Get("Bearer another-token-of-ours"), StartsWith("HTTP/1.1 401"));
}

TEST_F(MetricsServerTest, sec_metrics_tls_ItIsSpokenWithACertificateAndAToken) {
  TestCa ca(folder_);
  tls_ = ca.Issue("coordinator", "spiffe://pactrain/coordinator");
  Start(tls_);
  EXPECT_THAT(GetByTls(std::string("Bearer ") + kToken),
              HasSubstr("secret 42\n"));
  EXPECT_THAT(GetByTls("Bearer x"), StartsWith("HTTP/1.1 401 "));
  EXPECT_EQ(Get(std::string("Bearer ") + kToken).find("secret"),
            std::string::npos)
      << "in plain text";
  server_.reset();
  EXPECT_THAT(refused_, ElementsAre("127.0.0.1 /metrics: its bearer token is "
                                    "another one"));
}

TEST_F(MetricsServerTest, sec_metrics_tls_WhoIsSlowTakesNobodysPlace) {
  TestCa ca(folder_);
  tls_ = ca.Issue("coordinator", "spiffe://pactrain/coordinator");
  ASSERT_OK_AND_ASSIGN(
      auto front, HttpFront::Start({"127.0.0.1", 0}, tls_, {"127.0.0.1", 1},
                                   {.connections = 2,
                                    .request = absl::Milliseconds(50),
                                    .silence = absl::Seconds(1)}));
  for (int i = 0; i < 5; ++i) {  // Says nothing, or is one too many.
    tcp::socket socket(io_);
    socket.connect(EndpointOf(front->address()));
    std::string nothing;
    asio::error_code end;
    asio::read(socket, asio::dynamic_buffer(nothing), end);
    EXPECT_TRUE(end);
    EXPECT_EQ(nothing, "");
  }
}

// Far more than there are threads or places, none of them with a whole request:
// each newcomer gets in, and nobody waits until they are given up.
TEST_F(MetricsServerTest, sec_slow_requests_KeepNobodyOut) {
  Start();
  std::vector<tcp::socket> slow;
  for (int i = 0; i < 300; ++i) {
    slow.emplace_back(io_).connect(EndpointOf(server_->address()));
    asio::write(slow.back(), asio::buffer(std::string("GET /metrics HTTP/1")));
    if (i % 100 == 0) {
      EXPECT_THAT(Get(absl::StrCat("Bearer ", kToken)), HasSubstr("secret 42"));
    }
  }
  EXPECT_THAT(Get(absl::StrCat("Bearer ", kToken)), HasSubstr("secret 42"));
}

TEST_F(MetricsServerTest, WhoEndsItsSideAfterTheRequestIsAnswered) {
  Start();
  tcp::socket socket(io_);
  socket.connect(EndpointOf(server_->address()));
  asio::write(socket, asio::buffer(absl::StrCat(
                          "GET /metrics HTTP/1.0\r\nAuthorization: Bearer ",
                          kToken, "\r\n\r\n")));
  socket.shutdown(tcp::socket::shutdown_send);
  std::string answer;
  asio::error_code end;
  asio::read(socket, asio::dynamic_buffer(answer), end);
  EXPECT_THAT(answer, HasSubstr("secret 42"));
}

TEST_F(MetricsServerTest, sec_AHeadWithoutAnEndIsClosed) {
  Start();
  tcp::socket socket(io_);
  socket.connect(EndpointOf(server_->address()));
  asio::error_code over;
  asio::write(socket, asio::buffer(std::string(1 << 20, 'x')), over);
  char byte;
  if (!over) asio::read(socket, asio::buffer(&byte, 1), over);
  EXPECT_TRUE(over);
}

TEST_F(MetricsServerTest, ATokenIsOneLongWordOfItsOwnersAlone) {
  ASSERT_OK_AND_ASSIGN(const std::string token, ReadToken("--t", token_file_));
  EXPECT_EQ(token, kToken);
  chmod(token_file_.c_str(), 0604);
  EXPECT_THAT(
      ReadToken("--t", token_file_),
      StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("--t: ")));
  for (const std::string& bad :
       {std::string("short"), std::string("two words of more than 16"),
        std::string(2000, 'x'), std::string("\x01 0123456789abcdef")}) {
    std::filesystem::remove(token_file_);
    WriteToken(bad);
    EXPECT_THAT(ReadToken("--t", token_file_),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("openssl rand -hex 32")))
        << bad;
  }
}

TEST_F(MetricsServerTest, sec_page_token_IsAPasswordToo) {
  const auto check = [&](const std::string& authorization) {
    return CheckBearerOrPassword(token_file_, authorization.c_str());
  };
  const auto basic = [](absl::string_view pair) {
    return absl::StrCat("basic ", absl::Base64Escape(pair));
  };
  EXPECT_OK(check(absl::StrCat("bearer  ", kToken)));
  EXPECT_OK(check(basic(absl::StrCat(":", kToken))));
  EXPECT_OK(check(basic(absl::StrCat("anybody:", kToken))));
  const auto refused = [](const std::string& why) {
    return StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(why));
  };
  EXPECT_THAT(CheckBearerOrPassword(token_file_, nullptr),
              refused("no bearer token"));
  EXPECT_THAT(check(absl::StrCat("Digest ", kToken)),
              refused("no bearer token"));
  EXPECT_THAT(check("Basic !!!"), refused("no password"));
  EXPECT_THAT(check("Basic "), refused("no password"));
  EXPECT_THAT(check(basic(kToken)), refused("no password"));
  EXPECT_THAT(check(basic(absl::StrCat(kToken, ":"))),
              refused("its password is another one"));
  EXPECT_THAT(check(basic(absl::StrCat("a:", kToken, "x"))),
              refused("its password is another one"));
  std::filesystem::remove(token_file_);
  EXPECT_THAT(check(basic(absl::StrCat("a:", kToken))), refused(token_file_));
}

}  // namespace
}  // namespace pactrain::base
