#include "agent/metrics/agent_metrics.h"
#include "asio/connect.hpp"
#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "asio/read.hpp"
#include "asio/write.hpp"
#include "base/metrics/metrics_server.h"
#include "base/net.h"
#include "base/status_matchers.h"
#include "base/version.h"
#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Get(const base::HostPort& address,
                const std::string& path = "/metrics") {
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  socket.connect({asio::ip::make_address(address.host), address.port});
  asio::write(socket, asio::buffer(std::string(
                          "GET " + path + " HTTP/1.0\r\nHost: agent\r\n\r\n")));
  std::string answer;
  asio::error_code end;
  asio::read(socket, asio::dynamic_buffer(answer), end);
  return answer;
}

class MetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    snapshot_.agent = "node-1";
    snapshot_.site = "eu";
    metrics_ = std::make_shared<AgentMetrics>(snapshot_);
    ASSERT_OK_AND_ASSIGN(
        server_, base::MetricsServer::Start({"127.0.0.1", 0}, metrics_));
  }

  MetricsSnapshot snapshot_;
  std::shared_ptr<AgentMetrics> metrics_;
  std::unique_ptr<base::MetricsServer> server_;
};

TEST_F(MetricsTest, ZerosAreThereFromTheStart) {
  const std::string page = Get(server_->address());
  EXPECT_THAT(page, HasSubstr("pactrain_agent_build_info{version=\"" +
                              std::string(base::kVersion) +
                              "\",agent=\"node-1\",site=\"eu\"} 1"));
  EXPECT_THAT(page, HasSubstr("pactrain_agent_coordinator_connected 0"));
  EXPECT_THAT(page, HasSubstr("pactrain_agent_groups 0"));
}

TEST_F(MetricsTest, sec_AnInsecureNetworkIsShown) {
  EXPECT_THAT(Get(server_->address()),
              HasSubstr("pactrain_agent_insecure_network 0"));
  snapshot_.insecure_network = true;
  metrics_->Publish(snapshot_);
  EXPECT_THAT(Get(server_->address()),
              HasSubstr("pactrain_agent_insecure_network 1"));
}

TEST_F(MetricsTest, sec_cert_life_alarm_IsShown) {
  EXPECT_THAT(Get(server_->address()),
              Not(HasSubstr("pactrain_agent_certificate_ends_soon 0")))
      << "there is none";
  const absl::Time now = absl::Now();
  snapshot_.certificates = {{now - absl::Hours(3), now + absl::Hours(3)},
                            {now - absl::Hours(3), now + absl::Hours(9)}};
  metrics_->Publish(snapshot_);
  std::string page = Get(server_->address());
  EXPECT_THAT(page, HasSubstr("certificate_left_seconds{certificate=\"own\"} "
                              "107"));  // Of 10,800 some have passed.
  EXPECT_THAT(page, HasSubstr("certificate_left_seconds{certificate=\"ca\"} "
                              "323"));
  EXPECT_THAT(page, HasSubstr("pactrain_agent_certificate_ends_soon 0"));
  snapshot_.certificates->ca.until = now + absl::Minutes(30);
  metrics_->Publish(snapshot_);
  page = Get(server_->address());
  EXPECT_THAT(page, HasSubstr("pactrain_agent_certificate_ends_soon 1"));
}

TEST_F(MetricsTest, ShowsWhatWasPublishedLast) {
  snapshot_.peers.push_back({"us", false, 100, 200, absl::Milliseconds(50), 1e6,
                             3, absl::Milliseconds(1500)});
  GroupStatus group;
  group.group = {"job", 1};
  group.generation = 3;
  group.trainers = 2;
  group.committed_count = 7;
  group.failed_attempts[static_cast<size_t>(protocol::Cause::kStall)] = 3;
  group.phases[0].Add(0.25);
  group.phases[0].Add(200);
  snapshot_.groups.push_back(group);
  metrics_->Publish(snapshot_);
  const std::string page = Get(server_->address());
  for (const char* line : {
           "peer_bytes_total{peer_site=\"us\",scope=\"inter\",direction="
           "\"sent\"} 100",
           "peer_bytes_total{peer_site=\"us\",scope=\"inter\",direction="
           "\"received\"} 200",
           "peer_busy_seconds_total{peer_site=\"us\",scope=\"inter\"} 1.5",
           "peer_rtt_seconds{peer_site=\"us\"} 0.05",
           "peer_bbr_connections{peer_site=\"us\"} 3",
           "trainers{training_job=\"job\",model=\"1\"} 2",
           "steps_committed_total{training_job=\"job\",model=\"1\"} 7",
           "attempts_failed_total{training_job=\"job\",model=\"1\",cause="
           "\"stall\"} 3",
           "attempts_failed_total{training_job=\"job\",model=\"1\",cause="
           "\"mask\"} 0",
           "phase_seconds_bucket{training_job=\"job\",model=\"1\","
           "phase=\"compute\",le=\"0.3\"} 1",
           "phase_seconds_count{training_job=\"job\",model=\"1\","
           "phase=\"compute\"} 2",
           "phase_seconds_sum{training_job=\"job\",model=\"1\","
           "phase=\"compute\"} 200.25",
           "phase_seconds_count{training_job=\"job\",model=\"1\","
           "phase=\"vote\"} 0",
       }) {
    EXPECT_THAT(page, HasSubstr(line));
  }
}

TEST_F(MetricsTest, ShowsTheReserveBesideWhatIsAvailable) {
  EXPECT_THAT(Get(server_->address()),
              ::testing::Not(HasSubstr("available_memory_bytes 1000")));
  snapshot_.full_reserve_bytes = 600;
  snapshot_.available_memory_bytes = 1000;
  metrics_->Publish(snapshot_);
  const std::string page = Get(server_->address());
  EXPECT_THAT(page, HasSubstr("pactrain_agent_full_reserve_bytes 600"));
  EXPECT_THAT(page, HasSubstr("pactrain_agent_available_memory_bytes 1000"));
}

TEST_F(MetricsTest, sec_limits_SeriesOfAJob) {
  GroupStatus group;
  group.group = {"job", 1};
  snapshot_.groups.push_back(group);
  metrics_->Publish(snapshot_);
  const std::string page = Get(server_->address());
  size_t series = 0;
  for (size_t at = page.find("{training_job="); at != page.npos;
       at = page.find("{training_job=", at + 1)) {
    ++series;
  }
  EXPECT_GT(series, 20);
  EXPECT_LE(series, size_t{protocol::kMaxSeriesPerJob});
}

// Agents have no budgets of identities.
TEST_F(MetricsTest, NoReasonIsThereForWhichNobodyIsRefused) {
  EXPECT_THAT(
      Get(server_->address(), "/metrics"),
      ::testing::AllOf(HasSubstr("connections_refused_total{reason=\"key\"}"),
                       ::testing::Not(HasSubstr("reason=\"budget\""))));
}

TEST_F(MetricsTest, OtherPathsAreNotThere) {
  EXPECT_THAT(Get(server_->address(), "/metrics/x"),
              HasSubstr("404 Not Found"));
  EXPECT_THAT(Get(server_->address(), "/"), HasSubstr("404 Not Found"));
}

TEST_F(MetricsTest, TakenAddressIsAnErrorThatNamesIt) {
  EXPECT_THAT(base::MetricsServer::Start(server_->address(), metrics_),
              base::StatusIs(absl::StatusCode::kUnavailable,
                             HasSubstr(server_->address().ToString())));
}

}  // namespace
}  // namespace pactrain::agent
