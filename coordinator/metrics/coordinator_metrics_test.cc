#include "coordinator/metrics/coordinator_metrics.h"

#include <regex>
#include <sstream>

#include "base/metrics/metrics_server.h"
#include "base/status_matchers.h"
#include "base/version.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;

StateSnapshot Running() {
  StateSnapshot s;
  s.cluster_id = "c0ffee";
  s.term = 3;
  s.agents = {{"a", "x", true, "", ""}, {"b", "y", false, "", ""}};
  GroupSnapshot g;
  g.group = {"job", 1};
  g.phase = GroupPhase::kRunning;
  g.generation.emplace().number = 2;
  g.in_force = protocol::Decision{
      5,  protocol::Mode::kCompacted, protocol::Codec::kBf16, {1, 1}, {2, 2},
      "r"};
  g.committed_total = 70;
  g.failed_attempts_total = 4;
  g.norm_alarms_total = 6;
  g.risk = 0.15;
  g.risk_clip = 0.02;
  g.kept_elements = 30;
  g.elements = 100;
  g.links = {{"a", "x", "y", 1, 2, 1000, 0.25},
             {"a2", "x", "y", 1, 2, 500, 0.5}};
  s.groups.push_back(g);
  return s;
}

Connections Refusing() {
  Connections connections;
  connections.open = 7;
  connections.refused.Add(base::Refusal::kSource);
  return connections;
}

std::string Page(const StateSnapshot& snapshot, bool insecure_network = false) {
  const CoordinatorMetrics metrics([&] { return snapshot; }, Refusing,
                                   insecure_network);
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, metrics.Collect());
  return text.str();
}

TEST(CoordinatorMetrics, StartsWithZeros) {
  const std::string page = Page({});
  for (const char* line :
       {"pactrain_coordinator_agents{state=\"connected\"} 0\n",
        "pactrain_coordinator_jobs{state=\"running\"} 0\n",
        "pactrain_coordinator_read_only 0\n",
        "pactrain_coordinator_connections 7\n",
        "connections_refused_total{reason=\"source\"} 1\n",
        "connections_refused_total{reason=\"handshake\"} 0\n"}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
}

TEST(CoordinatorMetrics, ShowsWhatTheSnapshotHolds) {
  const std::string page = Page(Running());
  EXPECT_THAT(page,
              HasSubstr("build_info{version=\"" + std::string(base::kVersion) +
                        "\",cluster_id=\"c0ffee\"} 1\n"));
  for (const char* line :
       {"_term 3\n", "agents{state=\"disconnected\"} 1\n",
        "jobs{state=\"running\"} 1\n",
        "generation{job=\"job\",model=\"1\"} 2\n",
        "decision_version{job=\"job\",model=\"1\"} 5\n",
        "decision{job=\"job\",model=\"1\",mode=\"COMPACTED\",codec=\"bf16\"} "
        "1\n",
        "masks_keep_ratio{job=\"job\",model=\"1\"} 0.3",
        "steps_committed_total{job=\"job\",model=\"1\"} 70\n",
        "coordinator_risk{job=\"job\",model=\"1\"} 0.15",
        "coordinator_risk_clip{job=\"job\",model=\"1\"} 0.02",
        "attempts_failed_total{job=\"job\",model=\"1\"} 4\n",
        "norm_alarms_total{job=\"job\",model=\"1\"} 6\n",
        "goodput_bytes_per_second{job=\"job\",model=\"1\",site=\"x\",peer_site="
        "\"y\"} "
        "1500\n",
        "rtt_seconds{job=\"job\",model=\"1\",site=\"x\",peer_site=\"y\"} "
        "0.5\n"}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
}

TEST(CoordinatorMetrics, sec_AnInsecureNetworkIsShown) {
  EXPECT_THAT(Page({}, true),
              HasSubstr("pactrain_coordinator_insecure_network 1\n"));
  EXPECT_THAT(Page({}, false),
              HasSubstr("pactrain_coordinator_insecure_network 0\n"));
}

TEST(CoordinatorMetrics, sec_cert_life_alarm_IsShown) {
  const auto page = [](absl::Duration left) {
    const absl::Time now = absl::Now();
    const base::CertificateLife life = {now - absl::Hours(10), now + left};
    const CoordinatorMetrics metrics(
        [] { return StateSnapshot(); },
        [&] {
          return Connections{0, {}, base::CertificateLives{life, life}};
        },
        false);
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, metrics.Collect());
    return text.str();
  };
  EXPECT_THAT(page(absl::Hours(10)),
              HasSubstr("pactrain_coordinator_certificate_ends_soon 0\n"));
  EXPECT_THAT(page(absl::Hours(2)),
              HasSubstr("pactrain_coordinator_certificate_ends_soon 1\n"));
  EXPECT_THAT(
      page(absl::Hours(-1)),
      HasSubstr("_certificate_left_seconds{certificate=\"own\"} -3600"));
  EXPECT_THAT(Page({}), Not(HasSubstr("_certificate_ends_soon 0\n")));
}

TEST(CoordinatorMetrics, NamesFollowTheConventions) {
  const CoordinatorMetrics metrics(Running, Refusing, false);
  for (const auto& family : metrics.Collect()) {
    EXPECT_TRUE(std::regex_match(
        family.name, std::regex("pactrain_coordinator_[a-z]+(_[a-z]+)*")))
        << family.name;
    EXPECT_FALSE(family.help.empty()) << family.name;
    const bool counter = family.type == prometheus::MetricType::Counter;
    const bool total =
        family.name.size() > 6 &&
        family.name.compare(family.name.size() - 6, 6, "_total") == 0;
    EXPECT_EQ(counter, total) << family.name;
  }
}

size_t Count(const std::string& page, const std::string& words) {
  size_t count = 0;
  for (size_t at = page.find(words); at != page.npos;
       at = page.find(words, at + 1)) {
    ++count;
  }
  return count;
}

TEST(CoordinatorMetrics, sec_limits_SeriesOfAJob) {
  // Of a group with so many pairs of sites, and all else that there can be.
  const auto page = [](size_t pairs) {
    StateSnapshot s = Running();
    s.groups[0].exchange_share = 0.1;
    s.groups[0].links.clear();
    for (size_t i = 0; i < pairs; ++i) {
      s.groups[0].links.push_back(
          {"a", "x" + std::to_string(i), "y", 0, 0, 1, 1});
    }
    return Page(s);
  };
  constexpr size_t kLimit = CoordinatorMetrics::kMaxLinks;
  const std::string last = "site=\"x" + std::to_string(kLimit) + "\"";
  EXPECT_EQ(Count(page(kLimit), "link_rtt_seconds{"), kLimit);
  EXPECT_EQ(Count(page(kLimit + 1), "link_rtt_seconds{"), kLimit);
  EXPECT_THAT(page(kLimit + 1), Not(HasSubstr(last)));
  // Which is what keeps all of it within this.
  const size_t series = Count(page(kLimit + 1), "{job=");
  EXPECT_GT(series, 2 * kLimit);
  EXPECT_LE(series, size_t{protocol::kMaxSeriesPerJob});
}

TEST(MetricsServer, ATakenPortIsAnError) {
  auto metrics = std::make_shared<CoordinatorMetrics>(Running, Refusing, false);
  ASSERT_OK_AND_ASSIGN(auto server,
                       base::MetricsServer::Start({"127.0.0.1", 0}, metrics));
  EXPECT_GT(server->address().port, 0);
  EXPECT_THAT(base::MetricsServer::Start(server->address(), metrics),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr(server->address().ToString())));
}

}  // namespace
}  // namespace pactrain::coordinator
