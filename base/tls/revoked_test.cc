#include "base/tls/revoked.h"

#include <openssl/obj_mac.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "base/tls/certificate_facts.h"
#include "base/tls/test_certs.h"

namespace pactrain::base {
namespace {

using ::testing::HasSubstr;

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class RevokedTest : public ::testing::Test {
 protected:
  RevokedTest() { std::filesystem::create_directories(other_folder_); }
  bool Denies(const RevokedCertificates& revoked, const TlsFiles& files) const {
    const CertificateFacts facts = FactsOf(absl::string_view(Read(files.cert)));
    return revoked.Contains(facts.ca, facts.serial);
  }
  void ExpectRefused(const std::string& pem, const std::string& why) const {
    EXPECT_THAT(RevokedCertificates::Of(pem, Read(a_.ca)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  }

  const std::string folder_ = MakeTestFolder(), other_folder_ = folder_ + "/o";
  const TestCa ca_{folder_};
  const TlsFiles a_ = ca_.Issue("a", "spiffe://pactrain/agent/a");
  const TlsFiles b_ = ca_.Issue("b", "spiffe://pactrain/agent/b");
};

TEST_F(RevokedTest, WhatItsCaTookBackIsInTheListAndNothingElse) {
  ASSERT_OK_AND_ASSIGN(const auto revoked,
                       RevokedCertificates::Of(ca_.Revoke({a_}), Read(a_.ca)));
  EXPECT_TRUE(Denies(revoked, a_));
  EXPECT_FALSE(Denies(revoked, b_));
  EXPECT_EQ(revoked.size(), 1u);
}

TEST_F(RevokedTest, EachCaHasAListOfItsOwn) {
  const TestCa other(other_folder_);
  const TlsFiles c = other.Issue("c", "spiffe://pactrain/agent/c");
  ASSERT_OK_AND_ASSIGN(
      const auto revoked,
      RevokedCertificates::Of(ca_.Revoke({a_}) + other.Revoke({b_}, 7200),
                              Read(a_.ca) + Read(c.ca)));
  EXPECT_TRUE(Denies(revoked, a_));
  EXPECT_FALSE(Denies(revoked, b_));  // The number is of another CA's.
  EXPECT_LT(revoked.until(), absl::Now() + absl::Minutes(61));
}

TEST_F(RevokedTest, AListThatIsOutOfDateCountsAllTheSame) {
  ASSERT_OK_AND_ASSIGN(
      const auto revoked,
      RevokedCertificates::Of(ca_.Revoke({a_}, -60), Read(a_.ca)));
  EXPECT_TRUE(Denies(revoked, a_));
  EXPECT_LT(revoked.until(), absl::Now());
}

TEST_F(RevokedTest, sec_AListThatItsCaHasNotSignedIsRefused) {
  const TestCa unknown(other_folder_);
  ExpectRefused(unknown.Revoke({}), "which is no CA of tls-ca");
  // Of the same name.
  const std::string twin_folder = folder_ + "/twin";
  std::filesystem::create_directories(twin_folder);
  const TestCa first(twin_folder, "twin");
  const std::string ca = Read(twin_folder + "/ca.pem");
  EXPECT_THAT(
      RevokedCertificates::Of(TestCa(twin_folder, "twin").Revoke({}), ca),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("is not signed by that CA")));
}

TEST_F(RevokedTest, WhatIsNoWholeListIsRefused) {
  ExpectRefused("", "there is no list");
  ExpectRefused("who needs lists?", "there is no list");
  const std::string list = ca_.Revoke({a_});
  ExpectRefused(list.substr(0, list.size() / 2), "malformed");
  ExpectRefused(list + list.substr(0, list.size() / 2), "malformed");
  ExpectRefused(ca_.Revoke({a_}, 3600, {NID_delta_crl, "critical,DER:020101"}),
                "critical extension 'X509v3 Delta CRL Indicator'");
}

}  // namespace
}  // namespace pactrain::base
