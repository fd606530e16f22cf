#include "base/certificate_life.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace pactrain::base {

bool CertificateLife::EndsSoon(absl::Time now) const {
  return until - now < (until - from) / 5;
}

std::string CertificateLife::Text(absl::Time now) const {
  if (now >= until) return "has expired";
  const int64_t hours = (until - now) / absl::Hours(1);
  return hours < 48 ? absl::StrCat("is valid for ", hours, " hours")
                    : absl::StrCat("is valid for ", hours / 24, " days");
}

}  // namespace pactrain::base
