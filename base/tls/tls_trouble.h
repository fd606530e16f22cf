// Why a TLS connection failed, in our words instead of OpenSSL's.
//
// Pure.
#ifndef PACTRAIN_BASE_TLS_TLS_TROUBLE_H_
#define PACTRAIN_BASE_TLS_TLS_TROUBLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace pactrain::base {

// `result`: of SSL_get_verify_result(), what is wrong with the other side's
// certificate. REQUIRES: not X509_V_OK.
std::string WhyUnverified(long result);

// `error`: of OpenSSL's queue, about a connection. What the other side is or
// has said; empty: OpenSSL's words are all there is.
absl::string_view WhyTlsFailed(unsigned long error);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_TLS_TROUBLE_H_
