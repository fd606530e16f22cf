#include "base/tls/job_key.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "base/tls/certificate_facts.h"
#include "base/tls/job_certificates.h"
#include "base/tls/job_keys.h"
#include "base/tls/test_certs.h"
#include "base/tls/tls_choice.h"
#include "base/tls/tls_source.h"

namespace pactrain::base {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kUri[] = "spiffe://pactrain/agent/a";
const std::string kText(64, '5');

std::shared_ptr<X509> Parse(const std::string& pem) {
  const std::shared_ptr<BIO> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  return {PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), X509_free};
}

// Whether someone at `now` who trusts `ca` alone would take the certificate in
// `pem` for the client's or, the other way round, the server's.
std::string Verify(const JobKey& ca, const std::string& pem, absl::Time now) {
  const std::shared_ptr<X509> root = Parse(*ca.CaPem()), leaf = Parse(pem);
  for (const int purpose : {X509_PURPOSE_SSL_CLIENT, X509_PURPOSE_SSL_SERVER}) {
    const std::shared_ptr<X509_STORE> store(X509_STORE_new(), X509_STORE_free);
    X509_STORE_add_cert(store.get(), root.get());
    const std::shared_ptr<X509_STORE_CTX> check(X509_STORE_CTX_new(),
                                                X509_STORE_CTX_free);
    X509_STORE_CTX_init(check.get(), store.get(), leaf.get(), nullptr);
    X509_STORE_CTX_set_purpose(check.get(), purpose);
    X509_STORE_CTX_set_flags(check.get(), X509_V_FLAG_CHECK_SS_SIGNATURE);
    X509_STORE_CTX_set_time(check.get(), 0, absl::ToTimeT(now));
    if (X509_verify_cert(check.get()) != 1) {
      return X509_verify_cert_error_string(
          X509_STORE_CTX_get_error(check.get()));
    }
  }
  return "ok";
}

JobKey KeyOf(const std::string& text) { return *JobKey::FromText(text); }

TEST(JobKey, EqualKeysInAnyFormGiveTheSameAuthority) {
  std::string base64;
  absl::Base64Escape(absl::HexStringToBytes(kText), &base64);
  const JobKey key = KeyOf(kText);
  for (const std::string& text : {kText, "\n " + kText + "\n", base64}) {
    ASSERT_OK_AND_ASSIGN(const JobKey same, JobKey::FromText(text));
    EXPECT_EQ(same.id(), key.id());
    EXPECT_EQ(*same.CaPem(), *key.CaPem());
  }
  EXPECT_EQ(KeyOf(std::string(64, 'a')).id(), KeyOf(std::string(64, 'A')).id());
}

TEST(JobKey, sec_WhatIsNoKeyIsRefusedWithoutQuotingIt) {
  for (const std::string& text :
       {std::string(), std::string(63, 'e'), std::string(65, 'e'),
        std::string(63, 'e') + "g", std::string(44, '!'),
        std::string(40, 'e') + "===="}) {
    EXPECT_THAT(
        JobKey::FromText(text).status(),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("64 hex digits"), Not(HasSubstr("eeee")))))
        << text;
  }
}

TEST(JobKey, NewKeysDiffer) {
  ASSERT_OK_AND_ASSIGN(const std::string a, JobKey::NewText());
  ASSERT_OK_AND_ASSIGN(const std::string b, JobKey::NewText());
  EXPECT_NE(a, b);
  EXPECT_NE(KeyOf(a).id(), KeyOf(b).id());
}

TEST(JobKey, ACertificateOfTheSameKeyIsTaken) {
  const absl::Time now = absl::Now();
  ASSERT_OK_AND_ASSIGN(
      const std::string pem,
      KeyOf(kText).Issue(kUri, now - absl::Hours(1), now + absl::Hours(1)));
  EXPECT_EQ(Verify(KeyOf(kText), pem, now), "ok");
  EXPECT_THAT(UrisOf(Parse(pem).get()), ElementsAre(kUri));
  EXPECT_EQ(X509_check_ca(Parse(pem).get()), 0);
}

TEST(JobKey, sec_ACertificateOfAnotherKeyIsNotTaken) {
  const absl::Time now = absl::Now();
  ASSERT_OK_AND_ASSIGN(
      const std::string pem,
      KeyOf(std::string(64, '6'))
          .Issue(kUri, now - absl::Hours(1), now + absl::Hours(1)));
  EXPECT_EQ(Verify(KeyOf(kText), pem, now),
            "unable to get local issuer certificate");
}

TEST(JobKey, sec_AnExpiredCertificateIsNotTaken) {
  const absl::Time now = absl::Now();
  ASSERT_OK_AND_ASSIGN(
      const std::string pem,
      KeyOf(kText).Issue(kUri, now - absl::Hours(2), now - absl::Hours(1)));
  EXPECT_EQ(Verify(KeyOf(kText), pem, now), "certificate has expired");
}

TEST(JobKey, ANewFileHasANewKeyForItsOwnerAlone) {
  const std::string path = MakeTestFolder() + "/job.key";
  ASSERT_OK(WriteNewJobKey(path));
  struct stat found;
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  EXPECT_OK(JobKeys::FromFile("--job-key-file", path));
  EXPECT_THAT(WriteNewJobKey(path), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("File exists")));
}

TEST(JobKey, sec_AFileThatOthersMayReadIsRefused) {
  const std::string path = MakeTestFolder() + "/job.key";
  ASSERT_OK(WriteNewJobKey(path));
  chmod(path.c_str(), 0644);
  EXPECT_THAT(
      JobKeys::FromFile("--job-key-file", path).status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("--job-key-file: " + path +
                         " may be used by "
                         "others than its owner and group; chmod 600")));
}

TEST(JobKey, AFileWithoutAKeyIsNamed) {
  const std::string folder = MakeTestFolder();
  EXPECT_THAT(JobKeys::FromFile("--job-key-file", folder + "/none").status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("/none cannot be read: No such file")));
  const std::string path = folder + "/text";
  std::ofstream(path) << "secret";
  chmod(path.c_str(), 0600);
  EXPECT_THAT(JobKeys::FromFile("--job-key-file", path).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--job-key-file: " + path +
                                       " is no job key; allowed are"),
                             Not(HasSubstr("secret")))));
}

TEST(JobCertificates, HoldForClocksADayApart) {
  ASSERT_OK_AND_ASSIGN(const auto made,
                       JobCertificates::Create(KeyOf(kText), kUri));
  ASSERT_OK_AND_ASSIGN(const auto uris, CheckTlsFiles(made->files(), {}));
  EXPECT_THAT(uris, ElementsAre(kUri));
  std::stringstream pem;
  pem << std::ifstream(made->files().cert).rdbuf();
  const absl::Time now = absl::Now();
  for (const int hours : {-23, 0, 23, 13 * 24}) {
    EXPECT_EQ(Verify(KeyOf(kText), pem.str(), now + absl::Hours(hours)), "ok")
        << hours;
  }
}

TEST(JobCertificates, AreRenewedWhileTheyAreUsed) {
  ASSERT_OK_AND_ASSIGN(
      const auto made,
      JobCertificates::Create(KeyOf(kText), kUri,
                              {.renew_every = absl::Milliseconds(20)}));
  ASSERT_OK_AND_ASSIGN(const auto source, TlsSource::Open(made->files()));
  std::vector<TlsContext> seen = {source->Get()};
  const absl::Duration end = MonotonicNow() + absl::Minutes(2);
  while (seen.size() < 4 && MonotonicNow() < end) {
    if (source->Get() != seen.back()) seen.push_back(source->Get());
  }
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_NE(
      ASN1_INTEGER_cmp(
          X509_get0_serialNumber(SSL_CTX_get0_certificate(seen[0].get())),
          X509_get0_serialNumber(SSL_CTX_get0_certificate(seen[3].get()))),
      0);
}

TEST(JobCertificates, AreReadWholeWhileTheyAreRenewed) {
  ASSERT_OK_AND_ASSIGN(
      const auto made,
      JobCertificates::Create(KeyOf(kText), kUri,
                              {.renew_every = absl::ZeroDuration()}));
  for (int i = 0; i < 300; ++i) {
    ASSERT_OK(MakeTlsContext(made->files(), {}).status());
  }
}

constexpr char kNine[] = "2026-01-31T09:00:00Z",
               kTen[] = "2026-01-31T10:00:00Z";

absl::Time At(const char* text) {
  absl::Time time;
  EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, text, &time, nullptr));
  return time;
}

std::string IdOf(const std::string& text) { return KeyOf(text).id(); }

TEST(JobKeys, TheNewOneIsTakenAtOnceAndShownFromItsTimeOn) {
  const std::string fresh(64, '6');
  ASSERT_OK_AND_ASSIGN(const JobKeys keys,
                       JobKeys::FromText(kText + " until " + kTen + "\n" +
                                         fresh + " from " + kNine + "\n"));
  const absl::Time before = At(kNine) - absl::Seconds(1);
  EXPECT_EQ(keys.Shown(before).id(), IdOf(kText));
  EXPECT_THAT(keys.Taken(before), ElementsAre(IdOf(kText), IdOf(fresh)));
  EXPECT_EQ(keys.Shown(At(kNine)).id(), IdOf(fresh));
  EXPECT_THAT(keys.Taken(At(kNine)), ElementsAre(IdOf(kText), IdOf(fresh)));
  EXPECT_THAT(keys.Taken(At(kTen)), ElementsAre(IdOf(fresh)));
}

TEST(JobKeys, WhatIsNoKeyWithItsTimesIsRefusedWithoutAWordOfIt) {
  for (const std::string& text :
       {std::string(), kText + " from", kText + " at " + kNine,
        kText + " from tomorrow", kText + "\nsecret",
        kText + "\n" + kText + "\n" + kText + "\n" + kText + "\n" + kText}) {
    EXPECT_THAT(
        JobKeys::FromText(text).status(),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(Not(HasSubstr("secret")), Not(HasSubstr(kText)))))
        << text;
  }
  ASSERT_OK_AND_ASSIGN(const std::string bound,
                       KeyOf(kText).NewBoundText("vision.job.pactrain"));
  EXPECT_THAT(JobKeys::FromText(kText + "\n" + bound).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("not of the same job")));
}

TEST(JobKeys, AChangeKeepsTheOldOneForAWhile) {
  const absl::Time now = At(kNine) - absl::Hours(1);
  ASSERT_OK_AND_ASSIGN(const ChangedKey changed,
                       ChangeKey(kText + "\n", now, At(kNine), At(kTen)));
  EXPECT_EQ(changed.old_id, IdOf(kText));
  ASSERT_OK_AND_ASSIGN(const JobKeys keys, JobKeys::FromText(changed.text));
  EXPECT_EQ(keys.Shown(now).id(), changed.old_id);
  EXPECT_EQ(keys.Shown(At(kNine)).id(), changed.new_id);
  EXPECT_THAT(keys.Taken(At(kTen)), ElementsAre(changed.new_id));
  // One after the other.
  EXPECT_THAT(ChangeKey(changed.text, At(kNine), At(kTen), At(kTen)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is being changed already")));
  ASSERT_OK_AND_ASSIGN(
      const ChangedKey again,
      ChangeKey(changed.text, At(kTen), At(kTen), At(kTen) + absl::Hours(1)));
  EXPECT_EQ(again.old_id, changed.new_id);
  EXPECT_THAT(again.text, Not(HasSubstr(kText)));
}

TEST(JobKeys, ThoseOfOneJobAreMadeOfBothWithTheirTimes) {
  ASSERT_OK_AND_ASSIGN(const ChangedKey changed,
                       ChangeKey(kText, At(kNine), At(kNine), At(kTen)));
  ASSERT_OK_AND_ASSIGN(const JobKeys keys, JobKeys::FromText(changed.text));
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       keys.NewBoundText("vision.job.pactrain"));
  ASSERT_OK_AND_ASSIGN(const JobKeys bound, JobKeys::FromText(text));
  EXPECT_EQ(bound.host(), "vision.job.pactrain");
  ASSERT_OK_AND_ASSIGN(const std::string both, keys.CaPem(At(kNine)));
  EXPECT_EQ(*bound.CaPem(At(kNine)), both);
  ASSERT_OK_AND_ASSIGN(const std::string one, keys.CaPem(At(kTen)));
  EXPECT_EQ(*bound.CaPem(At(kTen)), one);
  EXPECT_THAT(ChangeKey(text, At(kNine), At(kNine), At(kTen)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is a key of vision.job.pactrain alone")));
}

TEST(JobCertificates, FollowTheFileOfTheirKey) {
  const std::string path = MakeTestFolder() + "/job.key";
  ASSERT_OK(WriteJobKey(path, kText));
  ASSERT_OK_AND_ASSIGN(const JobKeys keys, JobKeys::FromFile("key", path));
  ASSERT_OK_AND_ASSIGN(
      const auto made,
      JobCertificates::Create(
          keys, kUri, {.file = path, .look_every = absl::Milliseconds(5)}));
  const auto await = [&](size_t cas, const std::string& shown) {
    const absl::Duration end = MonotonicNow() + absl::Minutes(2);
    std::string found;
    size_t count = 0;
    while (MonotonicNow() < end && (count != cas || found != shown)) {
      std::stringstream leaf, ca;
      leaf << std::ifstream(made->files().cert).rdbuf();
      ca << std::ifstream(made->files().ca).rdbuf();
      found = FactsOf(absl::string_view(leaf.str())).issuer;
      count = 0;
      for (size_t at = 0;
           (at = ca.str().find("BEGIN", at)) != std::string::npos; ++at) {
        ++count;
      }
    }
    EXPECT_EQ(count, cas);
    EXPECT_EQ(found, shown);
  };
  await(1, IdOf(kText));
  const absl::Time now = absl::Now(), later = now + absl::Hours(1);
  ASSERT_OK_AND_ASSIGN(const ChangedKey soon,
                       ChangeKey(kText, now, later, later));
  ASSERT_OK(ReplaceJobKeyFile(path, soon.text));
  await(2, IdOf(kText));
  ASSERT_OK(ReplaceJobKeyFile(path, "half of a"));
  await(2, IdOf(kText));
  ASSERT_OK_AND_ASSIGN(const ChangedKey done, ChangeKey(kText, now, now, now));
  ASSERT_OK(ReplaceJobKeyFile(path, done.text));
  await(1, done.new_id);
}

std::string UriOfAll(const std::string&) { return kUri; }

class ChooseTlsTest : public ::testing::Test {
 protected:
  ~ChooseTlsTest() override { unsetenv(kJobKeyVariable); }
  void ExpectRefused(const TlsFiles& files, const std::string& job_key_file,
                     const std::string& what) {
    EXPECT_THAT(ChooseTls(files, job_key_file, {}, &UriOfAll).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  }
};

TEST_F(ChooseTlsTest, NothingIsNoTlsAndFilesAreAsTheyAre) {
  ASSERT_OK_AND_ASSIGN(const TlsFiles none, ChooseTls({}, "", {}, &UriOfAll));
  EXPECT_FALSE(none.given());
  ASSERT_OK_AND_ASSIGN(const TlsFiles files,
                       ChooseTls({"c", "k", "a"}, "", {}, &UriOfAll));
  EXPECT_EQ(files.cert, "c");
}

TEST_F(ChooseTlsTest, AFileOrTheVariableGivesACertificateForTheUri) {
  const std::string path = MakeTestFolder() + "/job.key";
  ASSERT_OK(WriteNewJobKey(path));
  ASSERT_OK_AND_ASSIGN(const TlsFiles file, ChooseTls({}, path, {}, &UriOfAll));
  EXPECT_THAT(*CheckTlsFiles(file, {}), ElementsAre(kUri));
  setenv(kJobKeyVariable, kText.c_str(), /*overwrite=*/1);
  ASSERT_OK_AND_ASSIGN(const TlsFiles variable,
                       ChooseTls({}, "", {}, &UriOfAll));
  EXPECT_THAT(*CheckTlsFiles(variable, {}), ElementsAre(kUri));
}

TEST_F(ChooseTlsTest, sec_BothAKeyAndCertificatesAreAMistake) {
  ExpectRefused({"c", "k", "a"}, "f",
                "--job-key-file: given beside --tls-cert; allowed is");
  ExpectRefused({"", "", "a"}, "f", "--job-key-file: given beside --tls-ca");
  setenv(kJobKeyVariable, kText.c_str(), /*overwrite=*/1);
  ExpectRefused({}, "f", "--job-key-file: given beside PACTRAIN_JOB_KEY");
  ExpectRefused({"c", "k", "a"}, "",
                "PACTRAIN_JOB_KEY: given beside --tls-cert");
}

TEST_F(ChooseTlsTest, sec_AVariableThatHoldsNoKeyIsNamedAndNotQuoted) {
  setenv(kJobKeyVariable, "secret", /*overwrite=*/1);
  ExpectRefused({}, "", "PACTRAIN_JOB_KEY: its value is no job key");
  EXPECT_THAT(
      ChooseTls({}, "", {}, &UriOfAll).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, Not(HasSubstr("secret"))));
}

// Whether somebody with the first key takes a certificate of `key` for `uri`.
bool IsTaken(const JobKey& key, const JobKey& first, const std::string& uri) {
  const std::string folder = MakeTestFolder();
  const absl::Time now = absl::Now();
  std::ofstream(folder + "/leaf.pem")
      << *key.Issue(uri, now - absl::Hours(1), now + absl::Hours(1));
  std::ofstream(folder + "/ca.pem") << *first.CaPem();
  std::filesystem::permissions(folder + "/leaf.pem",
                               std::filesystem::perms::owner_read);
  return MakeTlsContext(
             {folder + "/leaf.pem", folder + "/leaf.pem", folder + "/ca.pem"},
             {})
      .ok();
}

TEST(JobKey, sec_ABoundKeyIsOfUseForItsHostAlone) {
  const JobKey first = KeyOf(kText);
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       first.NewBoundText("vision.job.pactrain"));
  EXPECT_EQ(text.find('\n'), text.npos);
  ASSERT_OK_AND_ASSIGN(const JobKey key, JobKey::FromText(text + "\n"));
  EXPECT_EQ(key.host(), "vision.job.pactrain");
  EXPECT_NE(key.id(), first.id());
  EXPECT_EQ(*key.CaPem(), *first.CaPem());
  EXPECT_TRUE(IsTaken(key, first, "spiffe://vision.job.pactrain/agent/a"));
  for (const char* uri :
       {"spiffe://pactrain/agent/a", "spiffe://pactrain/coordinator",
        "spiffe://text.job.pactrain/agent/a",
        "spiffe://a.vision.job.pactrain/agent/a",
        "spiffe://job.pactrain/operator"}) {
    EXPECT_FALSE(IsTaken(key, first, uri)) << uri;
  }
  EXPECT_TRUE(IsTaken(first, first, "spiffe://pactrain/coordinator"));
}

TEST(JobKey, sec_ABoundKeyIsOfNoUseToOthersKeysAndMakesNoOther) {
  const JobKey first = KeyOf(kText);
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       first.NewBoundText("vision.job.pactrain"));
  ASSERT_OK_AND_ASSIGN(const JobKey key, JobKey::FromText(text));
  EXPECT_FALSE(IsTaken(key, KeyOf(std::string(64, '7')),
                       "spiffe://vision.job.pactrain/agent/a"));
  EXPECT_THAT(key.NewBoundText("text.job.pactrain"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is a key of vision.job.pactrain alone")));
  // Each is another one, so that one may be given up.
  ASSERT_OK_AND_ASSIGN(const std::string again,
                       first.NewBoundText("vision.job.pactrain"));
  EXPECT_NE(JobKey::FromText(again)->id(), key.id());
  const absl::Time now = absl::Now();
  ASSERT_OK_AND_ASSIGN(const std::string pem,
                       key.Issue("spiffe://vision.job.pactrain/agent/a", now,
                                 now + absl::Hours(1)));
  EXPECT_EQ(FactsOf(absl::string_view(pem)).issuer, key.id());
}

TEST(JobKey, ABoundKeyThatWasCutOrChangedIsNone) {
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       KeyOf(kText).NewBoundText("vision.job.pactrain"));
  const size_t begin = text.rfind(':') + 1;
  for (size_t at = begin; at < text.size(); at += 40) {
    EXPECT_FALSE(JobKey::FromText(text.substr(0, at)).ok()) << at;
  }
  std::string changed = text;
  changed[begin + 4] = changed[begin + 4] == 'A' ? 'B' : 'A';
  EXPECT_FALSE(JobKey::FromText(changed).ok());
  EXPECT_FALSE(JobKey::FromText("bound:x").ok());
}

}  // namespace
}  // namespace pactrain::base
