#include "base/metrics/metrics_page.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace pactrain::base {
namespace {

const char* TypeName(MetricType type) {
  switch (type) {
    case MetricType::Counter:
      return "counter";
    case MetricType::Histogram:
      return "histogram";
    default:
      return "gauge";
  }
}

}  // namespace

void MetricsPage::Start(const char* name, MetricType type, const char* help,
                        std::vector<std::string> labels) {
  MetricFamily family;
  family.name = prefix_ + name;
  family.help = help;
  family.type = type;
  families_.push_back(std::move(family));
  labels_.push_back(std::move(labels));
}

prometheus::ClientMetric& MetricsPage::AddSeries(
    const std::vector<std::string>& values) {
  const std::vector<std::string>& names = labels_.back();
  PT_CHECK(names.size() == values.size());
  prometheus::ClientMetric& metric = families_.back().metric.emplace_back();
  for (size_t i = 0; i < names.size(); ++i) {
    metric.label.push_back({names[i], values[i]});
  }
  return metric;
}

void MetricsPage::Add(const std::vector<std::string>& values,
                      const Histogram& histogram) {
  prometheus::ClientMetric& metric = AddSeries(values);
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    metric.histogram.sample_count += histogram.counts[i];
    const double bound = i < Histogram::kBounds.size()
                             ? Histogram::kBounds[i]
                             : std::numeric_limits<double>::infinity();
    metric.histogram.bucket.push_back({metric.histogram.sample_count, bound});
  }
  metric.histogram.sample_sum = histogram.sum;
}

void MetricsPage::Append(MetricsPage other) {
  for (size_t i = 0; i < other.families_.size(); ++i) {
    families_.push_back(std::move(other.families_[i]));
    labels_.push_back(std::move(other.labels_[i]));
  }
}

std::string MetricsPage::Table() const {
  std::string table =
      "| metric | type | labels | meaning |\n|---|---|---|---|\n";
  for (size_t i = 0; i < families_.size(); ++i) {
    absl::StrAppend(&table, "| `", families_[i].name, "` | ",
                    TypeName(families_[i].type), " | ",
                    absl::StrJoin(labels_[i], ", "), " | ", families_[i].help,
                    " |\n");
  }
  return table;
}

}  // namespace pactrain::base
