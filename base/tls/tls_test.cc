#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/log_capture.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "base/tls/test_certs.h"
#include "base/tls/tls_files.h"
#include "base/tls/tls_source.h"

namespace pactrain::base {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kUri[] = "spiffe://pactrain/agent/a";

class TlsFilesTest : public ::testing::Test {
 protected:
  static void ExpectRefused(const TlsFiles& files, const std::string& what) {
    EXPECT_THAT(CheckTlsFiles(files, {}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  }
  const std::string folder_ = MakeTestFolder();
  const TestCa ca_{folder_};
};

TEST_F(TlsFilesTest, GoodFilesGiveTheUrisOfTheCertificate) {
  ASSERT_OK_AND_ASSIGN(const auto uris,
                       CheckTlsFiles(ca_.Issue("a", kUri), {}));
  EXPECT_THAT(uris, ElementsAre(kUri));
}

TEST_F(TlsFilesTest, NoneIsNoTls) {
  ASSERT_OK_AND_ASSIGN(const auto uris, CheckTlsFiles({}, {}));
  EXPECT_THAT(uris, IsEmpty());
}

TEST_F(TlsFilesTest, SomeOfThemIsAMistakeThatNamesTheMissingOne) {
  const TlsFiles all = ca_.Issue("a", kUri);
  ExpectRefused({"", all.key, all.ca}, "--tls-cert: not given");
  ExpectRefused({all.cert, "", all.ca}, "--tls-key: not given");
  ExpectRefused({all.cert, all.key, ""}, "--tls-ca: not given");
}

TEST_F(TlsFilesTest, FilesThatCannotBeReadAreNamed) {
  const TlsFiles all = ca_.Issue("a", kUri);
  const std::string nowhere = folder_ + "/nowhere";
  ExpectRefused({nowhere, all.key, all.ca},
                "--tls-cert: " + nowhere + " cannot be read: No such file");
  ExpectRefused({all.cert, nowhere, all.ca}, "--tls-key: " + nowhere);
  ExpectRefused({all.cert, all.key, nowhere}, "--tls-ca: " + nowhere);
  ExpectRefused({all.cert, all.key, folder_}, "is not a file");
  const std::string text = folder_ + "/text";
  std::ofstream(text) << "no PEM";
  chmod(text.c_str(), 0600);
  ExpectRefused({text, all.key, all.ca}, "holds no PEM certificate");
  ExpectRefused({all.cert, text, all.ca}, "holds no PEM key");
  ExpectRefused({all.cert, all.key, text}, "holds no PEM certificate");
}

TEST_F(TlsFilesTest, PipeIsRefusedAndNobodyWaitsForItsWriter) {
  const TlsFiles all = ca_.Issue("a", kUri);
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ExpectRefused({pipe, pipe, all.ca}, "--tls-cert: " + pipe + " is not a file");
  ExpectRefused({pipe, all.key, all.ca}, pipe + " is not a file");
  ExpectRefused({all.cert, pipe, all.ca}, pipe + " is not a file");
}

TEST_F(TlsFilesTest, AnotherCertificatesKeyIsRefused) {
  const TlsFiles a = ca_.Issue("a", kUri), b = ca_.Issue("b", kUri);
  ExpectRefused(
      {a.cert, b.key, a.ca},
      absl::StrCat("--tls-key: ", b.key, " is not the key of ", a.cert));
}

TEST_F(TlsFilesTest, sec_KeyThatOthersMayReadIsRefused) {
  const TlsFiles files = ca_.Issue("a", kUri);
  for (const mode_t mode : {0604, 0606, 0620}) {
    chmod(files.key.c_str(), mode);
    ExpectRefused(files, "chmod 600 " + files.key);
  }
  chmod(files.key.c_str(), 0640);  // As secrets that are mounted are.
  EXPECT_OK(CheckTlsFiles(files, {}));
}

TEST_F(TlsFilesTest, sec_WhatOthersMayWriteIsRefused) {
  const TlsFiles files = ca_.Issue("a", kUri);
  chmod(files.ca.c_str(), 0646);
  ExpectRefused(files, absl::StrCat("--tls-ca: ", files.ca,
                                    " is not safe: others may write it; run: "
                                    "chmod go-w ",
                                    files.ca));
  chmod(files.ca.c_str(), 0644);
  EXPECT_OK(CheckTlsFiles(files, {}));
  if (geteuid() != 0) GTEST_SKIP() << "needs to be root to give it away";
  ASSERT_EQ(chown(files.ca.c_str(), 0, 1234), 0);
  chmod(files.ca.c_str(), 0664);
  ExpectRefused(files, "others may write it");
}

TEST_F(TlsFilesTest, CertificateThatOthersWouldRefuseIsRefusedAtStart) {
  ExpectRefused(ca_.Issue("old", TestCa::Leaf{{kUri}, -7200, -3600}),
                "certificate has expired");
  ExpectRefused(ca_.Issue("new", TestCa::Leaf{{kUri}, 3600, 7200}),
                "certificate is not yet valid");
  const TestCa other(MakeTestFolder("-other"));
  TlsFiles files = other.Issue("a", kUri);
  files.ca = ca_.Issue("a", kUri).ca;
  ExpectRefused(files, "would be refused by others with the CA " + files.ca);
}

TEST_F(TlsFilesTest, SourceTakesRewrittenFilesAndKeepsTheLastGoodOnes) {
  const TlsFiles files = ca_.Issue("a", kUri);
  ASSERT_OK_AND_ASSIGN(const auto source, TlsSource::Open(files));
  const TlsContext first = source->Get();
  EXPECT_EQ(source->Get(), first);
  ca_.Issue("a", "spiffe://pactrain/agent/b");
  const TlsContext second = source->Get();
  EXPECT_THAT(UrisOf(SSL_CTX_get0_certificate(second.get())),
              ElementsAre("spiffe://pactrain/agent/b"));
  std::filesystem::remove(files.key);
  EXPECT_EQ(source->Get(), second);
  ca_.Issue("a", kUri);
  EXPECT_THAT(UrisOf(SSL_CTX_get0_certificate(source->Get().get())),
              ElementsAre(kUri));
}

TEST_F(TlsFilesTest, LivesAreTheCertificatesAndItsCas) {
  const absl::Time now = absl::Now();
  const TlsFiles files = ca_.Issue("a", TestCa::Leaf{{kUri}, -100, 500});
  ASSERT_OK_AND_ASSIGN(const CertificateLives lives, LivesOf(files, {}));
  const auto after = [&](absl::Time time) {
    return absl::ToDoubleSeconds(time - now);
  };
  EXPECT_NEAR(after(lives.own.from), -100, 60);
  EXPECT_NEAR(after(lives.own.until), 500, 60);
  EXPECT_NEAR(after(lives.ca.until), 3600, 60);
}

TEST_F(TlsFilesTest, sec_cert_life_alarm_OnceADayUntilThereIsANewOne) {
  LogCapture log;
  const std::string words = "less than a fifth of its life";
  const TlsFiles files = ca_.Issue("a", TestCa::Leaf{{kUri}, -3600, 600});
  ASSERT_OK_AND_ASSIGN(const auto source, TlsSource::Open(files));
  const absl::Time now = absl::Now();
  source->Get(now);
  source->Get(now + absl::Minutes(1));
  EXPECT_EQ(log.Count(words), 1) << log.text();
  EXPECT_TRUE(log.Has(files.cert + " is valid for 0 hours")) << log.text();
  ca_.Issue("a", TestCa::Leaf{{kUri}, -3600, 700});
  source->Get(now + absl::Minutes(2));
  EXPECT_EQ(log.Count(words), 2) << "another one that ends soon";
  ca_.Issue("a", TestCa::Leaf{{kUri}, -10, 3600});
  source->Get(now + absl::Minutes(3));
  EXPECT_EQ(log.Count(words), 2);
  source->Get(now + absl::Minutes(50));  // Its own, and the CA's.
  EXPECT_EQ(log.Count(words), 4) << log.text();
  EXPECT_TRUE(log.Has(files.ca + " is valid for 0 hours")) << log.text();
  source->Get(now + absl::Hours(24));
  EXPECT_EQ(log.Count("has expired"), 0);
  source->Get(now + absl::Hours(25));
  EXPECT_EQ(log.Count("has expired"), 2) << log.text();
}

}  // namespace
}  // namespace pactrain::base
