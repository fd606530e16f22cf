// The metrics of a daemon's own certificate.
#ifndef PACTRAIN_BASE_METRICS_CERTIFICATE_METRICS_H_
#define PACTRAIN_BASE_METRICS_CERTIFICATE_METRICS_H_

#include <optional>

#include "absl/time/time.h"
#include "base/certificate_life.h"
#include "base/metrics/metrics_page.h"

namespace pactrain::base {

// `lives`: none where there is no TLS.
inline void AddCertificates(const std::optional<CertificateLives>& lives,
                            absl::Time now, MetricsPage& page) {
  page.Start("certificate_left_seconds", MetricType::Gauge,
             "Until the certificate in use expires, and until the first of "
             "those above it does; below 0: expired; none without TLS.",
             {"certificate"});
  if (lives) {
    page.Add({"own"}, absl::ToDoubleSeconds(lives->own.until - now));
    page.Add({"ca"}, absl::ToDoubleSeconds(lives->ca.until - now));
  }
  page.Start("certificate_ends_soon", MetricType::Gauge,
             "1 if one of them has less than a fifth of its life left; none "
             "without TLS.");
  if (lives) {
    page.Add({}, lives->own.EndsSoon(now) || lives->ca.EndsSoon(now) ? 1 : 0);
  }
}

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_METRICS_CERTIFICATE_METRICS_H_
