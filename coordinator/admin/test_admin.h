// For tests: the command as main() runs it, and a coordinator that it asks.
#ifndef PACTRAIN_COORDINATOR_ADMIN_TEST_ADMIN_H_
#define PACTRAIN_COORDINATOR_ADMIN_TEST_ADMIN_H_

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/admin/run.h"
#include "coordinator/rpc/test_server.h"
#include "gtest/gtest.h"
#include "protocol/test_messages.h"

namespace pactrain::coordinator {

// Agents that listen to nothing.
class DeafStream : public Driver::Stream {
 public:
  void Send(const protocol::CoordinatorMessage&) override {}
  void Close(const absl::Status&) override {}
};

struct Outcome {
  int exit_code = 0;
  std::string out, err;
};

// As main() does.
inline Outcome Tool(std::vector<const char*> words) {
  words.insert(words.begin(), "pactrain-admin");
  Outcome outcome;
  std::ostringstream out, err;
  const auto command = ParseCommand(static_cast<int>(words.size()),
                                    words.data(), out, err, &outcome.exit_code);
  if (command) {
    AdminClient client({command->coordinator, command->tls});
    const absl::Status status = Run(*command, client, out, err);
    outcome.exit_code = status.ok() ? 0 : 1;
    err << status.message();
  }
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

// A coordinator with two agents, each with a rank of the job "myjob".
class AdminTest : public ServerFixture {
 protected:
  void SetUp() override {
    Start();
    coordinator_ =
        absl::StrCat("--coordinator=", server_->address().ToString());
  }

  void Form() {
    for (uint32_t rank : {0u, 1u}) {
      auto stream = driver_->Open(std::make_shared<DeafStream>());
      ASSERT_OK(stream);
      streams_[rank] = *stream;
      const std::string name = absl::StrCat("node", rank);
      driver_->OnMessage(
          *stream, protocol::AgentHello{
                       name, base::DigestOf(name), absl::StrCat("site", rank),
                       absl::StrCat("127.0.0.1:900", rank), "t", ""});
      driver_->OnMessage(
          *stream,
          local_[rank].With(protocol::TrainerJoined{
              {"myjob", 0},
              {rank, 2, {1, rank + 1}, "run-1", {2, 2}, "a network", 10, 0},
              0}));
    }
  }
  void Vote(const protocol::Digest& masks, uint64_t kept) {
    for (uint32_t rank : {0u, 1u}) {
      driver_->OnMessage(
          streams_[rank],
          local_[rank].With(protocol::MaskVote{
              {"myjob", 0}, 1, rank, {3, 3}, masks, 1, 1, true, kept, 100}));
    }
  }
  Outcome Admin(std::vector<const char*> words) {
    words.push_back(coordinator_.c_str());
    return Tool(std::move(words));
  }
  std::optional<Pin> PinOfJob() const {
    return driver_->Snapshot().groups.at(0).pin;
  }

  std::string coordinator_;
  StreamId streams_[2] = {};
  protocol::TrainersOfAgent local_[2];
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_TEST_ADMIN_H_
