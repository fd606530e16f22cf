#include "base/tls/revoked.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tls/certificate_facts.h"

namespace pactrain::base {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using List = std::unique_ptr<X509_CRL, decltype(&X509_CRL_free)>;

Bio Read(absl::string_view pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())),
             BIO_free);
}

// Whether the reader of PEM stopped because there is no more of its kind.
bool IsAtEnd() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  return ERR_GET_LIB(error) == ERR_LIB_PEM &&
         ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
}

std::vector<Certificate> CasOf(absl::string_view pem) {
  const Bio bytes = Read(pem);
  std::vector<Certificate> cas;
  while (X509* ca = PEM_read_bio_X509(bytes.get(), nullptr, nullptr, nullptr)) {
    cas.emplace_back(ca, X509_free);
  }
  ERR_clear_error();
  return cas;
}

absl::Status CheckSigned(X509_CRL* list, const std::vector<Certificate>& cas) {
  bool named = false;
  for (const Certificate& ca : cas) {
    if (X509_NAME_cmp(X509_CRL_get_issuer(list),
                      X509_get_subject_name(ca.get())) != 0) {
      continue;
    }
    named = true;
    if (X509_CRL_verify(list, X509_get0_pubkey(ca.get())) == 1) {
      return absl::OkStatus();
    }
  }
  ERR_clear_error();
  char name[128] = {};
  X509_NAME_oneline(X509_CRL_get_issuer(list), name, sizeof name);
  return absl::InvalidArgumentError(absl::StrCat(
      "the list of ", name,
      named ? " is not signed by that CA" : ", which is no CA of tls-ca"));
}

// What is critical changes what the list means.
absl::Status CheckFollowed(const X509_CRL* list) {
  const int critical = X509_CRL_get_ext_by_critical(list, 1, -1);
  if (critical < 0) return absl::OkStatus();
  const ASN1_OBJECT* const what =
      X509_EXTENSION_get_object(X509_CRL_get_ext(list, critical));
  return absl::InvalidArgumentError(absl::StrCat(
      "a list has the critical extension '", OBJ_nid2ln(OBJ_obj2nid(what)),
      "', which is not followed; give the CA's whole list"));
}

}  // namespace

absl::StatusOr<RevokedCertificates> RevokedCertificates::Of(
    absl::string_view pem, absl::string_view ca_pem) {
  ERR_clear_error();
  const std::vector<Certificate> cas = CasOf(ca_pem);
  const Bio bytes = Read(pem);
  RevokedCertificates revoked;
  int lists = 0;
  while (true) {
    const List list(
        PEM_read_bio_X509_CRL(bytes.get(), nullptr, nullptr, nullptr),
        X509_CRL_free);
    if (list == nullptr) break;
    ++lists;
    RETURN_IF_ERROR(CheckSigned(list.get(), cas));
    RETURN_IF_ERROR(CheckFollowed(list.get()));
    const std::string ca = NameHashOf(X509_CRL_get_issuer(list.get()));
    STACK_OF(X509_REVOKED)* const entries = X509_CRL_get_REVOKED(list.get());
    for (int i = 0; i < sk_X509_REVOKED_num(entries); ++i) {
      const X509_REVOKED* const entry = sk_X509_REVOKED_value(entries, i);
      revoked.certificates_.emplace(
          ca, SerialText(X509_REVOKED_get0_serialNumber(entry)));
    }
    if (const ASN1_TIME* next = X509_CRL_get0_nextUpdate(list.get())) {
      revoked.until_ = std::min(revoked.until_, TimeOf(next));
    }
  }
  if (!IsAtEnd()) {
    return absl::InvalidArgumentError(
        absl::StrCat("what comes after ", lists, " lists is malformed"));
  }
  if (lists == 0) {
    return absl::InvalidArgumentError("there is no list (PEM 'X509 CRL')");
  }
  return revoked;
}

}  // namespace pactrain::base
