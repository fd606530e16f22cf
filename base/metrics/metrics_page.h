// Collects metric families for prometheus-cpp, one after the other.
//
//   MetricsPage page("pactrain_agent_");
//   page.Start("groups", MetricType::Gauge, "Attached models.");
//   page.Add({}, 3.0);
//
// Thread-compatible.
#ifndef PACTRAIN_BASE_METRICS_METRICS_PAGE_H_
#define PACTRAIN_BASE_METRICS_METRICS_PAGE_H_

#include <string>
#include <utility>
#include <vector>

#include "prometheus/metric_family.h"

namespace pactrain::base {

using prometheus::MetricFamily;
using prometheus::MetricType;
using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

class MetricsPage {
 public:
  // `prefix` precedes every name.
  explicit MetricsPage(std::string prefix) : prefix_(std::move(prefix)) {}

  void Start(const char* name, MetricType type, const char* help) {
    MetricFamily family;
    family.name = prefix_ + name;
    family.help = help;
    family.type = type;
    families_.push_back(std::move(family));
  }
  // To the family started last. REQUIRES: there is one.
  template <typename Number>
  void Add(MetricLabels labels, Number number) {
    const double value = static_cast<double>(number);
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    metric.gauge.value = value;
    metric.counter.value = value;  // The family's type says which one counts.
    families_.back().metric.push_back(std::move(metric));
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  const std::string prefix_;
  std::vector<MetricFamily> families_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_METRICS_METRICS_PAGE_H_
