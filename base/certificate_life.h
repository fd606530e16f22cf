// How long a certificate holds, and from when on that is too short.
//
// Pure: no clock.
#ifndef PACTRAIN_BASE_CERTIFICATE_LIFE_H_
#define PACTRAIN_BASE_CERTIFICATE_LIFE_H_

#include <string>

#include "absl/time/time.h"

namespace pactrain::base {

struct CertificateLife {
  absl::Time from;
  absl::Time until;

  // Less than a fifth of its life is left, or none: time for a new one. A share
  // and not a number of days, since certificates hold for hours or for years.
  bool EndsSoon(absl::Time now) const;
  // "is valid for 12 days", or hours where it is less than two days; "has
  // expired".
  std::string Text(absl::Time now) const;
};

// Of a program's certificate, and of those that it is no good without.
struct CertificateLives {
  CertificateLife own;
  // Of those above it, up to the CA's, the one that ends first.
  CertificateLife ca;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_CERTIFICATE_LIFE_H_
