// The words for what OpenSSL says at both ends of handshakes that fail.
#include "base/tls/tls_trouble.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "base/tls/test_certs.h"
#include "base/tls/tls_files.h"

namespace pactrain::base {
namespace {

using ::testing::HasSubstr;

constexpr char kCaName[] = "a CA";
constexpr char kUri[] = "spiffe://pactrain/agent/a";

struct BioPair {
  BioPair() { BIO_new_bio_pair(&ends[0], 0, &ends[1], 0); }
  BIO* ends[2];
};

// One end of a connection.
class End {
 public:
  End(const TlsContext& context, BIO* bio)
      : ssl_(SSL_new(context.get()), SSL_free) {
    SSL_set_bio(ssl_.get(), bio, bio);
  }
  void Serve() { SSL_set_accept_state(ssl_.get()); }
  void Dial() { SSL_set_connect_state(ssl_.get()); }

  // Shakes hands as far as it goes, then reads.
  void Turn() {
    char byte;
    if (error_ != 0 || SSL_read(ssl_.get(), &byte, 1) > 0) return;
    error_ = ERR_get_error();  // 0: it waits for the other end.
    ERR_clear_error();
  }

  std::string Unverified() const {
    return WhyUnverified(SSL_get_verify_result(ssl_.get()));
  }
  absl::string_view Failed() const { return WhyTlsFailed(error_); }

 private:
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  unsigned long error_ = 0;
};

class TlsTroubleTest : public ::testing::Test {
 protected:
  // One that takes any server; its certificate may be one that no program of
  // ours would start with.
  static TlsContext ClientWith(const TlsFiles& files) {
    TlsContext context = AnyClient();
    EXPECT_EQ(
        SSL_CTX_use_certificate_chain_file(context.get(), files.cert.c_str()),
        1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(),
                                          SSL_FILETYPE_PEM),
              1);
    return context;
  }
  static TlsContext AnyClient() {
    return TlsContext(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  }
  static TlsContext ServerWith(const TlsFiles& files) {
    auto context = MakeTlsContext(files, {});
    EXPECT_OK(context);
    return *context;
  }
  TlsFiles Valid(int from_s, int to_s) const {
    return ca_.Issue("client", TestCa::Leaf{{kUri}, from_s, to_s});
  }

  struct Both {
    End server;
    End client;
  };
  Both ShakeHands(const TlsContext& server, const TlsContext& client) {
    BioPair bios;
    Both both = {End(server, bios.ends[0]), End(client, bios.ends[1])};
    both.server.Serve();
    both.client.Dial();
    for (int turn = 0; turn < 10; ++turn) {
      both.client.Turn();
      both.server.Turn();
    }
    return both;
  }
  // What a server knows of one who says these bytes.
  std::string FailedAfter(const std::string& bytes) {
    BioPair bios;
    End server(server_, bios.ends[0]);
    server.Serve();
    BIO_write(bios.ends[1], bytes.data(), static_cast<int>(bytes.size()));
    server.Turn();
    BIO_free(bios.ends[1]);
    return std::string(server.Failed());
  }

  const TestCa ca_{MakeTestFolder(), kCaName};
  const TlsContext server_ = ServerWith(ca_.Issue("server", kUri));
};

TEST_F(TlsTroubleTest, OfAnotherCaOrKeyBothEndsSayThatTheyDiffer) {
  const TlsFiles key = IssueByJobKey('1', kUri);
  const TlsFiles other_key = IssueByJobKey('2', kUri);
  const TestCa anew(MakeTestFolder("-anew"), kCaName);  // By another key.
  for (const Both& both :
       {ShakeHands(ServerWith(key), ClientWith(other_key)),
        ShakeHands(server_, ClientWith(key)),
        ShakeHands(server_, ClientWith(anew.Issue("client", kUri)))}) {
    EXPECT_THAT(both.server.Unverified(), HasSubstr("(or CAs) differ"));
    EXPECT_THAT(std::string(both.client.Failed()),
                HasSubstr("does not take this side's certificate"));
  }
}

TEST_F(TlsTroubleTest, OfAnExpiredCertificateBothEndsSaySo) {
  const Both both = ShakeHands(server_, ClientWith(Valid(-20, -10)));
  EXPECT_EQ(both.server.Unverified(), "its certificate has expired");
  EXPECT_THAT(std::string(both.client.Failed()),
              HasSubstr("this side's certificate has expired"));
}

TEST_F(TlsTroubleTest, ACertificateOfTheFutureAsksForTheClocks) {
  const Both both = ShakeHands(server_, ClientWith(Valid(3600, 7200)));
  EXPECT_THAT(both.server.Unverified(), HasSubstr("are both clocks right?"));
}

TEST_F(TlsTroubleTest, ARareReasonIsInOpenSslsWords) {
  EXPECT_EQ(WhyUnverified(X509_V_ERR_CERT_REVOKED),
            "its certificate is refused: certificate revoked");
}

TEST_F(TlsTroubleTest, OfNoCertificateBothEndsSaySo) {
  const Both both = ShakeHands(server_, AnyClient());
  EXPECT_EQ(both.server.Failed(), "there is no certificate");
  EXPECT_EQ(both.client.Failed(), "there is no certificate");
}

TEST_F(TlsTroubleTest, PlainTextIsGuessed) {
  const std::string guess = "it speaks something else than TLS (plain text?)";
  EXPECT_EQ(FailedAfter("GET / HTTP/1.1\r\n\r\n"), guess);
  EXPECT_EQ(FailedAfter(std::string(64, 'x')), guess);
}

TEST_F(TlsTroubleTest, AnOldTlsIsNamed) {
  const TlsContext old = AnyClient();
  SSL_CTX_set_max_proto_version(old.get(), TLS1_2_VERSION);
  EXPECT_EQ(ShakeHands(server_, old).server.Failed(),
            "its hello is not of TLS 1.3");
}

TEST_F(TlsTroubleTest, OfWhatIsNoTroubleOfTlsNothingIsSaid) {
  EXPECT_EQ(WhyTlsFailed(0), "");
  EXPECT_EQ(WhyTlsFailed(ERR_PACK(ERR_LIB_PEM, 0, SSL_R_HTTP_REQUEST)), "");
  EXPECT_EQ(WhyTlsFailed(ERR_PACK(ERR_LIB_SSL, 0, SSL_R_BAD_LENGTH)), "");
  const Both both = ShakeHands(server_, ClientWith(ca_.Issue("client", kUri)));
  EXPECT_EQ(both.server.Failed(), "");
  EXPECT_EQ(both.client.Failed(), "");
}

}  // namespace
}  // namespace pactrain::base
