#include "base/tls/tls_trouble.h"

#include <openssl/err.h>
#include <openssl/sslerr.h>
#include <openssl/x509_vfy.h>

#include "absl/strings/str_cat.h"

namespace pactrain::base {

std::string WhyUnverified(long result) {
  switch (result) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "its certificate has expired";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "its certificate is not valid yet; are both clocks right?";
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
      return "its certificate is of another CA or job key: the job keys (or "
             "CAs) differ";
    default:
      return absl::StrCat("its certificate is refused: ",
                          X509_verify_cert_error_string(result));
  }
}

absl::string_view WhyTlsFailed(unsigned long error) {
  if (ERR_GET_LIB(error) != ERR_LIB_SSL) return "";
  switch (ERR_GET_REASON(error)) {
    // Of another key's CA, whose public key alone tells the two apart.
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
      return "it does not take this side's certificate: the job keys (or CAs) "
             "differ";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return "it says that this side's certificate has expired; are both "
             "clocks right?";
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return "there is no certificate";
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
      return "it speaks something else than TLS (plain text?)";
    case SSL_R_UNSUPPORTED_PROTOCOL:
      return "its hello is not of TLS 1.3";
    default:
      return "";
  }
}

}  // namespace pactrain::base
