#include "coordinator/metrics/coordinator_metrics.h"

#include <regex>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/metrics/metrics_server.h"
#include "base/status_matchers.h"
#include "base/version.h"
#include "coordinator/metrics/agent_targets.h"
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
  s.risk_bound = 0.3;
  s.agents = {{"a", "x", true, "", "", "h:1"},
              {"b", "y", false, "", "", "h:2"}};
  GroupSnapshot g;
  g.group = {"job", 1};
  g.phase = GroupPhase::kRunning;
  g.generation.emplace().number = 2;
  g.in_force = protocol::Decision{
      5,  protocol::Mode::kCompacted, protocol::Codec::kBf16, {1, 1}, {2, 2},
      "r"};
  g.committed_total = 70;
  g.failed_attempts_total = 4;
  g.failed_by_cause_total[0] = 1;
  g.failed_by_cause_total[static_cast<size_t>(protocol::Cause::kStall)] = 3;
  g.counted_since = absl::FromUnixSeconds(1700000000);
  g.norm_alarms_total = 6;
  g.lost_agents = {"b"};
  g.account.sent_bytes = 100;
  g.account.dense_bytes = 900;
  g.account.saved_seconds = 12;
  g.account.mode_seconds[2] = 7;
  g.account.fallbacks[2] = 3;
  g.account.mask_changes = 5;
  g.account.mask_unchanged_steps = 44;
  g.account.mode_predicted_seconds = {3, 1, 0};
  g.votes = {3, 2, 1, 0};
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

base::RpcCounts Called() {
  base::RpcCounter counter;
  const base::RpcMethod method = {"unary", "pactrain.v1.Admin", "ListJobs"};
  counter.Declare({"unary", "pactrain.v1.Admin", "SetPin"});
  counter.OnStarted(method);
  counter.OnStarted(method);
  counter.OnEnded(method, 7, 0.25);
  counter.OnEnded(method, 99, 0.25);
  return counter.Get();
}

std::string Page(const StateSnapshot& snapshot, bool insecure_network = false) {
  const CoordinatorMetrics metrics([&] { return snapshot; }, Refusing, Called,
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
        "pactrain_coordinator_audit_contradicted 0\n",
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
       {"_term 3\n",
        "agents{state=\"disconnected\"} 1\n",
        "jobs{state=\"running\"} 1\n",
        "generation{training_job=\"job\",model=\"1\"} 2\n",
        "decision_version{training_job=\"job\",model=\"1\"} 5\n",
        "mode{training_job=\"job\",model=\"1\",mode=\"COMPACTED\"} 1\n",
        "mode{training_job=\"job\",model=\"1\",mode=\"FULL\"} 0\n",
        "codec{training_job=\"job\",model=\"1\",codec=\"bf16\"} 1\n",
        "codec{training_job=\"job\",model=\"1\",codec=\"31 levels\"} 0\n",
        "job_state{training_job=\"job\",model=\"1\",state=\"running\"} 1\n",
        "job_state{training_job=\"job\",model=\"1\",state=\"waiting\"} 0\n",
        "missing_agents{training_job=\"job\",model=\"1\"} 1\n",
        "bytes_total{training_job=\"job\",model=\"1\",stage=\"dense\"} 900\n",
        "bytes_total{training_job=\"job\",model=\"1\",stage=\"wire\"} 100\n",
        "saved_bytes{training_job=\"job\",model=\"1\"} 800\n",
        "saved_seconds{training_job=\"job\",model=\"1\"} 12\n",
        "mode_seconds_total{training_job=\"job\",model=\"1\",mode=\"TERNARY\"} "
        "7\n",
        "fallbacks_total{training_job=\"job\",model=\"1\",from=\"TERNARY\",to="
        "\"FULL\",cause=\"masks\"} 3\n",
        "mask_changes_total{training_job=\"job\",model=\"1\"} 5\n",
        "mask_unchanged_steps{training_job=\"job\",model=\"1\"} 44\n",
        "mask_votes{training_job=\"job\",model=\"1\",vote=\"for\"} 3\n",
        "mask_votes{training_job=\"job\",model=\"1\",vote=\"against\"} 1\n",
        "predicted_step_seconds{training_job=\"job\",model=\"1\",mode=\"FULL\"}"
        " "
        "3\n",
        "coordinator_risk_bound 0.3",
        "masks_keep_ratio{training_job=\"job\",model=\"1\"} 0.3",
        "steps_committed_total{training_job=\"job\",model=\"1\"} 70\n",
        "coordinator_risk{training_job=\"job\",model=\"1\"} 0.15",
        "coordinator_risk_clip{training_job=\"job\",model=\"1\"} 0.02",
        "attempts_failed_total{training_job=\"job\",model=\"1\",cause="
        "\"not told\"} 1\n",
        "attempts_failed_total{training_job=\"job\",model=\"1\",cause="
        "\"stall\"} 3\n",
        "attempts_failed_total{training_job=\"job\",model=\"1\",cause="
        "\"checksum\"} 0\n",
        "counted_since_seconds{training_job=\"job\",model=\"1\"} "
        "1700000000\n",
        "norm_alarms_total{training_job=\"job\",model=\"1\"} 6\n",
        "goodput_bytes_per_second{training_job=\"job\",model=\"1\",site=\"x\","
        "peer_site="
        "\"y\"} "
        "1500\n",
        "rtt_seconds{training_job=\"job\",model=\"1\",site=\"x\",peer_site="
        "\"y\"} "
        "0.5\n"}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
}

TEST(CoordinatorMetrics, CallsAreCountedUnderTheUsualNames) {
  const std::string page = Page({});
  const std::string method =
      "{grpc_type=\"unary\",grpc_service=\"pactrain.v1.Admin\",grpc_method=";
  for (const char* line :
       {"grpc_server_started_total@\"ListJobs\"} 2\n",
        "grpc_server_started_total@\"SetPin\"} 0\n",
        "grpc_server_handled_total@\"ListJobs\",grpc_code=\"OK\"} 0\n",
        "grpc_server_handled_total@\"ListJobs\",grpc_code="
        "\"PermissionDenied\"} 1\n",
        "grpc_server_handled_total@\"ListJobs\",grpc_code=\"Unknown\"} 1\n",
        "grpc_server_handling_seconds_count@\"ListJobs\"} 2\n",
        "grpc_server_handling_seconds_sum@\"ListJobs\"} 0.5\n"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrReplaceAll(line, {{"@", method}})));
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
        Called, false);
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
  const CoordinatorMetrics metrics(Running, Refusing, Called, false);
  for (const auto& family : metrics.Collect()) {
    EXPECT_TRUE(std::regex_match(
        family.name,
        std::regex("(pactrain_coordinator|grpc_server)_[a-z]+(_[a-z]+)*")))
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

// A series for each pair of sites that measure each other, and all else that
// there can be.
StateSnapshot WithLinks(size_t pairs) {
  StateSnapshot s = Running();
  s.groups[0].exchange_share = 0.1;
  s.groups[0].links.clear();
  for (size_t i = 0; i < pairs; ++i) {
    s.groups[0].links.push_back(
        {"a", "x" + std::to_string(i), "y", 0, 0, 1, 1});
  }
  return s;
}

TEST(CoordinatorMetrics, ATreeOf32SitesIsShownWhole) {
  const std::string page = Page(WithLinks(2 * 31));
  EXPECT_EQ(Count(page, "link_rtt_seconds{"), 2 * 31);
  EXPECT_THAT(page, HasSubstr("links_hidden{training_job=\"job\",model=\"1\"} "
                              "0\n"));
  EXPECT_LE(Count(page, "{training_job="), size_t{protocol::kMaxSeriesPerJob});
}

TEST(CoordinatorMetrics, sec_limits_SeriesOfAJob) {
  constexpr size_t kLimit = CoordinatorMetrics::kMaxLinks;
  const std::string page = Page(WithLinks(kLimit + 3));
  EXPECT_EQ(Count(page, "link_rtt_seconds{"), kLimit);
  EXPECT_THAT(page, Not(HasSubstr("site=\"x" + std::to_string(kLimit) + "\"")));
  EXPECT_THAT(page, HasSubstr("links_hidden{training_job=\"job\",model=\"1\"} "
                              "3\n"));
  // Which is what keeps all of it within this.
  const size_t series = Count(page, "{training_job=");
  EXPECT_GT(series, 2 * kLimit);
  EXPECT_LE(series, size_t{protocol::kMaxSeriesPerJob});
}

TEST(AgentTargets, NamesWhoHasAStreamAndAnAddress) {
  StateSnapshot s = Running();
  s.agents.push_back({"c", "x", true, "", "", ""});
  EXPECT_EQ(AgentTargets(s),
            "[\n  {\"targets\": [\"h:1\"], \"labels\": {\"agent\": \"a\", "
            "\"site\": \"x\"}}\n]\n");
  EXPECT_EQ(AgentTargets({}), "[\n]\n");
}

TEST(AgentTargets, sec_AHostileAddressIsQuoted) {
  StateSnapshot s = Running();
  s.agents[0].metrics_address = "\"]}\\\n\xff:1";
  EXPECT_THAT(AgentTargets(s),
              HasSubstr("[\"\\u0022]}\\u005c\\u000a\\u00ff:1\"]"));
}

TEST(MetricsServer, ATakenPortIsAnError) {
  auto metrics =
      std::make_shared<CoordinatorMetrics>(Running, Refusing, Called, false);
  ASSERT_OK_AND_ASSIGN(auto server,
                       base::MetricsServer::Start({"127.0.0.1", 0}, metrics));
  EXPECT_GT(server->address().port, 0);
  EXPECT_THAT(base::MetricsServer::Start(server->address(), metrics),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr(server->address().ToString())));
}

TEST(CoordinatorMetrics, sec_limits_SeriesOfGroupsThatEnded) {
  StateSnapshot s;
  const auto add = [&](const std::string& job, GroupPhase phase, double ended) {
    GroupSnapshot group;
    group.group = {job, 0};
    group.phase = phase;
    group.ended_seconds = ended;
    s.groups.push_back(group);
  };
  add("a-old", GroupPhase::kEnded, 9000);
  add("fault", GroupPhase::kFailed, 9001);
  for (size_t i = 0; i < CoordinatorMetrics::kMaxEnded; ++i) {
    add(absl::StrCat("job", i), GroupPhase::kEnded, static_cast<double>(i));
  }
  add("waits", GroupPhase::kWaiting, 9002);
  const std::string page = Page(s);
  EXPECT_THAT(page, HasSubstr("jobs{state=\"ended\"} 101\n"));
  EXPECT_THAT(page, Not(HasSubstr("\"a-old\"")));
  // The flood of others hides no fault, nor what is not over.
  for (const char* job : {"fault", "waits", "job0", "job99"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("\"", job, "\"")));
  }
}

}  // namespace
}  // namespace pactrain::coordinator
