#include "base/tls/certificate_facts.h"

#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <algorithm>
#include <array>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/tls/tls_files.h"

namespace pactrain::base {
namespace {

constexpr char kJobKeyName[] = "PacTrain job key ";

std::string JobKeyOf(const X509* certificate) {
  char text[128] = {};
  X509_NAME_get_text_by_NID(X509_get_issuer_name(certificate), NID_commonName,
                            text, sizeof text);
  absl::string_view name = text;
  return absl::ConsumePrefix(&name, kJobKeyName) ? std::string(name) : "";
}

}  // namespace

std::string KeyOf(const X509* certificate) {
  unsigned char* bytes = nullptr;
  const int size = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(certificate), &bytes);
  if (size <= 0) return "";
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int length = 0;
  EVP_Digest(bytes, static_cast<size_t>(size), digest.data(), &length,
             EVP_sha256(), nullptr);
  OPENSSL_free(bytes);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), length));
}

std::string NameOfJobKey(absl::string_view id) {
  return absl::StrCat(kJobKeyName, id);
}

std::string NameHashOf(const X509_NAME* name) {
  // Of its canonical form, which OpenSSL gives nobody itself.
  return absl::StrCat(
      absl::Hex(X509_NAME_hash_ex(name, nullptr, nullptr, nullptr)));
}

std::string SerialText(const ASN1_INTEGER* serial) {
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> number(
      ASN1_INTEGER_to_BN(serial, nullptr), BN_free);
  char* const hex = BN_bn2hex(number.get());
  const std::string text = hex;
  OPENSSL_free(hex);
  return text;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  struct tm parts;
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

absl::Time FirstEndOf(const STACK_OF(X509) * certificates) {
  absl::Time end = absl::InfiniteFuture();
  for (int i = 0; i < sk_X509_num(certificates); ++i) {
    const X509* const certificate = sk_X509_value(certificates, i);
    end = std::min(end, TimeOf(X509_get0_notAfter(certificate)));
  }
  return end;
}

CertificateFacts FactsOf(const X509* certificate) {
  if (certificate == nullptr) return {};
  return {UrisOf(certificate),
          SerialText(X509_get0_serialNumber(certificate)),
          KeyOf(certificate),
          JobKeyOf(certificate),
          NameHashOf(X509_get_issuer_name(certificate)),
          TimeOf(X509_get0_notAfter(certificate)),
          ""};
}

CertificateFacts FactsOf(const SSL* connection) {
  CertificateFacts facts = FactsOf(SSL_get0_peer_certificate(connection));
  const STACK_OF(X509)* const chain = SSL_get0_verified_chain(connection);
  const int links = sk_X509_num(chain);
  if (links > 0) facts.anchor = KeyOf(sk_X509_value(chain, links - 1));
  facts.until = std::min(facts.until, FirstEndOf(chain));
  return facts;
}

CertificateFacts FactsOf(absl::string_view pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bytes(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      PEM_read_bio_X509(bytes.get(), nullptr, nullptr, nullptr), X509_free);
  if (certificate == nullptr) ERR_clear_error();
  return FactsOf(certificate.get());
}

}  // namespace pactrain::base
