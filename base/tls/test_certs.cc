#include "base/tls/test_certs.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/tls/job_certificates.h"
#include "base/tls/job_key.h"

namespace pactrain::base {
namespace {

uint64_t Random() {
  uint64_t number = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&number), sizeof number);
  return number;
}

// Written beside and renamed, as an operator should.
template <typename Write>
void WriteFile(const std::string& path, Write write) {
  const std::string fresh = path + ".new";
  FILE* file = std::fopen(fresh.c_str(), "w");
  PT_CHECK(file != nullptr);
  PT_CHECK(chmod(fresh.c_str(), 0600) == 0);
  PT_CHECK(write(file) == 1);
  PT_CHECK(std::fclose(file) == 0);
  std::filesystem::rename(fresh, path);
}

void Extend(X509* certificate, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension =
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  PT_CHECK(extension != nullptr);
  PT_CHECK(X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

}  // namespace

TestCa::TestCa(const std::string& folder)
    : TestCa(folder, absl::StrCat("test CA ", Random())) {}

TestCa::TestCa(const std::string& folder, const std::string& name)
    : folder_(folder), root_(NewAuthority(name, {}, nullptr)) {
  WriteFile(folder_ + "/ca.pem", [&](FILE* file) {
    return PEM_write_X509(file, root_.certificate.get());
  });
}

TestCa::Authority TestCa::NewAuthority(const std::string& name,
                                       const Leaf& life, const Authority* by) {
  const Key key = NewKey();
  return {key, Sign(name, key, /*is_ca=*/true, life, by)};
}

TestCa::Key TestCa::NewKey() { return Key(EVP_EC_gen("P-256"), EVP_PKEY_free); }

TestCa::Certificate TestCa::Sign(const std::string& subject, const Key& key,
                                 bool is_ca, const Leaf& leaf,
                                 const Authority* by) {
  Certificate made(X509_new(), X509_free);
  X509_set_version(made.get(), X509_VERSION_3);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(made.get()), Random());
  X509_gmtime_adj(X509_getm_notBefore(made.get()), leaf.valid_from_s);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), leaf.valid_to_s);
  X509_set_pubkey(made.get(), key.get());
  X509_NAME* name = X509_get_subject_name(made.get());
  PT_CHECK(X509_NAME_add_entry_by_txt(
               name, "CN", MBSTRING_UTF8,
               reinterpret_cast<const unsigned char*>(subject.c_str()), -1, -1,
               0) == 1);
  X509_set_issuer_name(
      made.get(),
      by == nullptr ? name : X509_get_subject_name(by->certificate.get()));
  if (is_ca) {
    Extend(made.get(), NID_basic_constraints, "critical,CA:TRUE");
    Extend(made.get(), NID_key_usage, "critical,keyCertSign");
  } else {
    Extend(made.get(), NID_ext_key_usage, "serverAuth,clientAuth");
  }
  if (!leaf.uris.empty()) {
    Extend(made.get(), NID_subject_alt_name,
           absl::StrCat("URI:", absl::StrJoin(leaf.uris, ",URI:")));
  }
  const Key& signer = by == nullptr ? key : by->key;
  PT_CHECK(X509_sign(made.get(), signer.get(), EVP_sha256()) > 0);
  return made;
}

TlsFiles TestCa::Issue(const std::string& name, const Leaf& leaf) const {
  const Key key = NewKey();
  std::optional<Authority> between;
  if (leaf.ca_valid_to_s != 0) {
    between = NewAuthority("between " + name,
                           Leaf{{}, -3600, leaf.ca_valid_to_s}, &root_);
  }
  const Certificate certificate =
      Sign(name, key, /*is_ca=*/false, leaf, between ? &*between : &root_);
  const std::string stem = absl::StrCat(folder_, "/", name);
  TlsFiles files{stem + ".pem", stem + ".key", folder_ + "/ca.pem"};
  WriteFile(files.key, [&](FILE* file) {
    return PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr,
                                nullptr);
  });
  WriteFile(files.cert, [&](FILE* file) {
    const int written = PEM_write_X509(file, certificate.get());
    if (!between || written != 1) return written;
    return PEM_write_X509(file, between->certificate.get());
  });
  return files;
}

std::string TestCa::Revoke(const std::vector<TlsFiles>& certificates,
                           int valid_to_s,
                           std::pair<int, std::string> extension) const {
  const std::unique_ptr<X509_CRL, decltype(&X509_CRL_free)> list(X509_CRL_new(),
                                                                 X509_CRL_free);
  X509_CRL_set_version(list.get(), X509_CRL_VERSION_2);
  X509_CRL_set_issuer_name(list.get(),
                           X509_get_subject_name(root_.certificate.get()));
  const std::unique_ptr<ASN1_TIME, decltype(&ASN1_TIME_free)> time(
      ASN1_TIME_new(), ASN1_TIME_free);
  X509_gmtime_adj(time.get(), -3600);
  X509_CRL_set1_lastUpdate(list.get(), time.get());
  for (const TlsFiles& files : certificates) {
    FILE* const file = std::fopen(files.cert.c_str(), "r");
    PT_CHECK(file != nullptr);
    const Certificate leaf(PEM_read_X509(file, nullptr, nullptr, nullptr),
                           X509_free);
    std::fclose(file);
    X509_REVOKED* const entry = X509_REVOKED_new();
    X509_REVOKED_set_serialNumber(entry, X509_get_serialNumber(leaf.get()));
    X509_REVOKED_set_revocationDate(entry, time.get());
    PT_CHECK(X509_CRL_add0_revoked(list.get(), entry) == 1);
  }
  X509_gmtime_adj(time.get(), valid_to_s);
  X509_CRL_set1_nextUpdate(list.get(), time.get());
  if (extension.first != 0) {
    X509_EXTENSION* const made = X509V3_EXT_conf_nid(
        nullptr, nullptr, extension.first, extension.second.c_str());
    PT_CHECK(made != nullptr);
    PT_CHECK(X509_CRL_add_ext(list.get(), made, -1) == 1);
    X509_EXTENSION_free(made);
  }
  PT_CHECK(X509_CRL_sign(list.get(), root_.key.get(), EVP_sha256()) > 0);
  const std::unique_ptr<BIO, decltype(&BIO_free)> bytes(BIO_new(BIO_s_mem()),
                                                        BIO_free);
  PT_CHECK(PEM_write_bio_X509_CRL(bytes.get(), list.get()) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bytes.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

TlsFiles IssueByJobKey(char digit, const std::string& uri) {
  return IssueByJobKey(std::string(64, digit), uri);
}

TlsFiles IssueByJobKey(const std::string& text, const std::string& uri) {
  auto key = JobKey::FromText(text);
  PT_CHECK(key.ok());
  const auto certificates = JobCertificates::Create(*std::move(key), uri);
  PT_CHECK(certificates.ok());
  TlsFiles files = (*certificates)->files();
  files.keeper = *certificates;
  return files;
}

}  // namespace pactrain::base
