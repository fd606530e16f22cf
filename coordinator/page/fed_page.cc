// The page of a large cluster that is made up: 100 jobs, 1,000 agents at 32
// sites, and an hour behind it. For bench/page_load.py. Names are such as a
// coordinator takes from nobody: the page must show them as text all the same.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "coordinator/page/page_board.h"
#include "coordinator/page/page_server.h"
#include "coordinator/page/test_snapshots.h"

namespace pactrain::coordinator {
namespace {

constexpr int kJobs = 100, kAgents = 1000, kTurnsOfADecision = 20;

StateSnapshot SnapshotAt(int turn) {
  StateSnapshot s = LargeSnapshot(kJobs, kAgents, turn / kTurnsOfADecision);
  for (int j = 0; j < kJobs; ++j) {
    GroupSnapshot& group = s.groups[static_cast<size_t>(j)];
    const double steps = turn * (10.0 + j);
    group.committed_step = static_cast<uint64_t>(steps);
    group.committed_total = group.committed_step;
    group.account.dense_bytes = steps * 40e6;
    group.account.kept_bytes = steps * 4e6;
    group.account.sent_bytes = steps * 4.1e6;
    group.account.saved_seconds = steps * 0.1;
    group.account.saved_by = SavedBy::kFull;
    const double swing = 1 + 0.1 * ((turn * (j + 3)) % 7);
    group.account.mode_interval_seconds = {2, 0.6 * swing, 0};
    group.account.mode_predicted_seconds = {2, 0.5, 0};
    for (LinkSnapshot& link : group.links) {
      link.sent_bytes = static_cast<uint64_t>(steps * 1e6);
      link.goodput_bytes_per_second *= swing;
    }
  }
  static const auto hostile = [&] {  // Told once.
    protocol::KeepByParameter keep = *s.groups[0].keep_by_parameter;
    keep.parameters[0].name = "<img src=/x onerror=alert('parameter')>";
    return std::make_shared<const protocol::KeepByParameter>(std::move(keep));
  }();
  s.groups[0].keep_by_parameter = hostile;
  s.groups[0].group.job = "<img src=/x onerror=\"alert('job')\">\n</script>";
  s.groups[1].group.job = std::string(64 << 10, 'x');
  s.groups[2].links[0].site = "\"><svg onload=alert('site')>";
  s.groups[2].generation->sites[0] = s.groups[2].links[0].site;
  s.agents[0].agent = "<b>agent</b>";
  s.agents[0].connected = false;
  return s;
}

void Run() {
  int turn = 0;
  absl::Duration past = kHistory;
  PageBoard board(
      {[&] { return SnapshotAt(turn++); }, [] { return std::nullopt; },
       [&] { return base::MonotonicNow() - past; }},
      {0.08, false});
  for (; past > absl::ZeroDuration(); past -= kPointEvery) board.Observe();
  const auto server =
      PageServer::Start({{"127.0.0.1", 0}}, &board, [](auto&&...) {});
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    std::_Exit(1);
  }
  board.Start();
  std::printf("listening page=%s\n", (*server)->address().ToString().c_str());
  std::fflush(stdout);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  int signal = 0;
  sigwait(&signals, &signal);
  std::_Exit(0);
}

}  // namespace
}  // namespace pactrain::coordinator

int main() {
  // Blocked before any thread starts, so that only sigwait() takes it.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  pactrain::coordinator::Run();
}
