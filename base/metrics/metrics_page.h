// Collects metric families for prometheus-cpp, one after the other, each with
// the labels that its series have.
//
//   MetricsPage page("pactrain_agent_");
//   page.Start("trainers", MetricType::Gauge, "Trainers here.", {"model"});
//   page.Add({"0"}, 3);
//
// Thread-compatible.
#ifndef PACTRAIN_BASE_METRICS_METRICS_PAGE_H_
#define PACTRAIN_BASE_METRICS_METRICS_PAGE_H_

#include <string>
#include <utility>
#include <vector>

#include "base/histogram.h"
#include "prometheus/metric_family.h"

namespace pactrain::base {

using prometheus::MetricFamily;
using prometheus::MetricType;

class MetricsPage {
 public:
  // `prefix` precedes every name.
  explicit MetricsPage(std::string prefix) : prefix_(std::move(prefix)) {}

  void Start(const char* name, MetricType type, const char* help,
             std::vector<std::string> labels = {});
  // To the family started last. REQUIRES: there is one, and it has as many
  // labels as there are `values`.
  template <typename Number>
  void Add(const std::vector<std::string>& values, Number number) {
    const double value = static_cast<double>(number);
    prometheus::ClientMetric& metric = AddSeries(values);
    metric.gauge.value = value;
    metric.counter.value = value;  // The family's type says which one counts.
  }
  void Add(const std::vector<std::string>& values, const Histogram& histogram);

  // The families of `other` come after these.
  void Append(MetricsPage other);

  std::vector<MetricFamily> Take() { return std::move(families_); }
  // What is here, as rows of a table in Markdown: name, type, labels, meaning.
  std::string Table() const;

 private:
  prometheus::ClientMetric& AddSeries(const std::vector<std::string>& values);

  std::string prefix_;
  std::vector<MetricFamily> families_;
  std::vector<std::vector<std::string>> labels_;  // By family.
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_METRICS_METRICS_PAGE_H_
