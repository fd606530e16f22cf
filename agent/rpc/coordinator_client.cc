#include "agent/rpc/coordinator_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "asio/post.hpp"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/releases.h"
#include "base/rpc/channel.h"
#include "base/rpc/credentials.h"
#include "protocol/identity.h"
#include "protocol/limits.h"
#include "protocol/local_trainers.h"

namespace pactrain::agent {
namespace {

constexpr absl::Duration kLogInterval = absl::Seconds(10);
constexpr absl::Duration kStopTimeout = absl::Seconds(5);

// Time does not heal these.
bool IsRefusal(const absl::Status& why) {
  return absl::IsFailedPrecondition(why) || absl::IsInvalidArgument(why) ||
         absl::IsPermissionDenied(why) || absl::IsUnauthenticated(why) ||
         absl::IsUnimplemented(why) || absl::IsAlreadyExists(why);
}

absl::Status CheckIsCoordinator(const std::vector<std::string>& uris) {
  return protocol::CheckIdentity(uris, {protocol::Role::kCoordinator, ""});
}

}  // namespace

// Lets the destructor wait until gRPC is done and keeps late posts from
// reaching a client that is gone.
struct CoordinatorClient::Mailbox {
  base::Mutex mutex;
  base::CondVar changed;
  CoordinatorClient* client ABSL_GUARDED_BY(mutex) = nullptr;
  int open_streams ABSL_GUARDED_BY(mutex) = 0;

  // Runs `what` on the io_context's thread.
  template <typename Function>
  void Post(Function what) {
    base::MutexLock lock(&mutex);
    if (client == nullptr) return;
    asio::post(client->io_, std::move(what));
  }
};

CoordinatorClient::CoordinatorClient(asio::io_context& io,
                                     const Options& options,
                                     CoordinatorEvents* events)
    : io_(io),
      options_(options),
      events_(events),
      stub_(v1::Coordinator::NewStub(base::MakeChannel(
          options.address,
          base::MakeChannelCredentials(options.tls, &CheckIsCoordinator),
          static_cast<int>(protocol::kMaxControlMessage)))),
      mailbox_(std::make_shared<Mailbox>()),
      backoff_(options.first_backoff),
      started_(base::MonotonicNow()),
      retry_timer_(io),
      welcome_timer_(io),
      heartbeat_timer_(io),
      word_timer_(io),
      random_(options.hello.incarnation.hi) {
  {
    base::MutexLock lock(&mailbox_->mutex);
    mailbox_->client = this;
  }
  Connect();
}

CoordinatorClient::~CoordinatorClient() {
  if (stream_ != nullptr) stream_->Cancel();
  const absl::Duration end = base::MonotonicNow() + kStopTimeout;
  base::MutexLock lock(&mailbox_->mutex);
  mailbox_->client = nullptr;
  while (mailbox_->open_streams > 0 && base::MonotonicNow() < end) {
    mailbox_->changed.WaitFor(&mailbox_->mutex, absl::Milliseconds(100));
  }
}

void CoordinatorClient::Connect() {
  const uint64_t number = ++stream_number_;
  {
    base::MutexLock lock(&mailbox_->mutex);
    ++mailbox_->open_streams;
  }
  AgentStream::Callbacks callbacks;
  callbacks.on_message =
      [this, number, mailbox = mailbox_](protocol::CoordinatorMessage message) {
        mailbox->Post([this, number, message = std::move(message)] {
          OnMessage(number, message);
        });
      };
  callbacks.on_done = [this, number, mailbox = mailbox_](absl::Status status) {
    mailbox->Post([this, number, status] { OnDone(number, status); });
    base::MutexLock lock(&mailbox->mutex);
    --mailbox->open_streams;
    mailbox->changed.NotifyAll();
  };
  stream_ = AgentStream::Start(stub_.get(), std::move(callbacks));
  unsaid_ = {};
  SendNow(options_.hello);
  welcome_timer_.expires_after(
      absl::ToChronoNanoseconds(options_.welcome_timeout));
  welcome_timer_.async_wait([this](const asio::error_code& error) {
    if (error || connected_ || stream_ == nullptr) return;
    Abandon(absl::DeadlineExceededError(absl::StrCat(
        "no answer within ", absl::FormatDuration(options_.welcome_timeout))));
  });
}

void CoordinatorClient::Send(protocol::AgentMessage message) {
  if (stream_ == nullptr) return;
  words_.Add(std::move(message));
  SendWaiting();
}

void CoordinatorClient::SendWaiting() {
  while (const auto word = words_.Next(base::MonotonicNow())) SendNow(*word);
  const absl::Duration now = base::MonotonicNow();
  const std::optional<absl::Duration> next = words_.next_at();
  if (!next) {
    slow_since_.reset();
    return;
  }
  if (!slow_since_) slow_since_ = now;
  if (now - *slow_since_ >= kLogInterval && !std::exchange(said_slow_, true)) {
    LOG_WARN(
        "there is more to tell the coordinator than it takes from one agent: "
        "it is told of trainers and their masks later, and of some changes "
        "together. Move masks less often, or have fewer jobs here");
  }
  word_timer_.expires_after(absl::ToChronoNanoseconds(*next - now));
  word_timer_.async_wait([this](const asio::error_code& error) {
    if (!error && connected_) SendWaiting();
  });
}

void CoordinatorClient::SendNow(const protocol::AgentMessage& message) {
  const auto send = [&](const protocol::AgentMessage& what) {
    words_.Told(stream_->Send(what), base::MonotonicNow());
  };
  const auto* local = std::get_if<protocol::LocalTrainers>(&message);
  if (local == nullptr || takes_local_trainers_) return send(message);
  protocol::LocalTrainers& said = said_[local->group];
  for (const auto& change : protocol::ChangesOf(said, *local)) send(change);
  said = *local;
}

void CoordinatorClient::OnMessage(uint64_t stream,
                                  const protocol::CoordinatorMessage& message) {
  if (stream != stream_number_ || stream_ == nullptr) return;
  if (const auto* welcome = std::get_if<protocol::Welcome>(&message)) {
    absl::Status checked = CheckWelcome(*welcome);
    if (checked.ok()) checked = TakeCluster(*welcome);
    if (!checked.ok()) return Abandon(checked);
    OnWelcome(*welcome);
  } else if (!connected_) {
    return Abandon(absl::FailedPreconditionError(
        "its first message is not the answer to our hello"));
  } else if (const auto* mark = std::get_if<protocol::HistoryMark>(&message)) {
    return OnMark(*mark);
  }
  events_->OnCoordinatorMessage(message);
}

absl::Status CoordinatorClient::CheckWelcome(
    const protocol::Welcome& welcome) const {
  const protocol::AgentHello& hello = options_.hello;
  if (!hello.cluster_id.empty() && welcome.cluster_id != hello.cluster_id) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it is of cluster ", welcome.cluster_id, " but this agent belongs to ",
        hello.cluster_id, "; restart the agent to move it"));
  }
  if (welcome.history.writer == hello.history.writer &&
      welcome.history.batches < hello.history.batches) {
    return absl::FailedPreconditionError(absl::StrCat(
        "its state directory is an older copy: it holds ",
        welcome.history.batches, " batches of records where ",
        hello.history.batches,
        " were told before; start it on the newest state directory"));
  }
  return absl::OkStatus();
}

void CoordinatorClient::OnMark(protocol::HistoryMark mark) {
  Keep(mark.audit);
  mark.audit = {};
  options_.hello.history = std::move(mark);
}

void CoordinatorClient::Keep(const protocol::AuditHead& head) {
  std::vector<protocol::AuditHead>& kept = options_.hello.audit;
  const std::vector<protocol::AuditHead> before = kept;
  protocol::KeepHead(head, kept);
  if (kept == before) return;
  // Once for each coordinator.
  const bool new_term =
      std::none_of(before.begin(), before.end(),
                   [&](const auto& other) { return other.term == head.term; });
  for (const protocol::AuditHead& other : before) {
    if (!new_term || other.term >= head.term || other.number <= head.number) {
      continue;
    }
    LOG_WARN(
        "the coordinator's audit log ends at line {}, and this agent was told "
        "of line {} in term {}: it was cut, or a backup was restored; see "
        "pactrain-admin audit --verify",
        head.number, other.number, other.term);
    break;
  }
  unsaid_ = head;
  events_->OnAuditHeads(
      {options_.hello.agent, options_.hello.cluster_id, kept});
}

absl::Status CoordinatorClient::TakeCluster(const protocol::Welcome& welcome) {
  if (!options_.hello.cluster_id.empty() ||
      options_.audit_cluster == welcome.cluster_id) {
    return absl::OkStatus();
  }
  if (!options_.hello.audit.empty()) {
    LOG_WARN(
        "this agent kept where the audit log of cluster {} ended, and the "
        "coordinator is of cluster {} now: that stays in a file of its own",
        options_.audit_cluster, welcome.cluster_id);
  }
  options_.hello.audit = events_->OnAnotherCluster(welcome.cluster_id);
  options_.audit_cluster = welcome.cluster_id;
  if (options_.hello.audit.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      "it is of a cluster that this agent was of before, and is to hear what "
      "is kept of its audit log");
}

void CoordinatorClient::OnWelcome(const protocol::Welcome& welcome) {
  options_.hello.cluster_id = welcome.cluster_id;
  OnMark(welcome.history);
  heartbeat_interval_ = welcome.heartbeat_interval;
  takes_local_trainers_ = welcome.takes_local_trainers;
  said_.clear();
  if (connected_) return;
  connected_ = true;
  backoff_ = options_.first_backoff;
  last_reason_.clear();
  welcome_timer_.cancel();
  LOG_INFO("connected with coordinator {} of cluster {}, term {}",
           options_.address, welcome.cluster_id, welcome.term);
  if (!welcome.version.empty() && welcome.version != said_release_) {
    said_release_ = welcome.version;
    if (welcome.version != options_.hello.version) {
      LOG_WARN("the coordinator is of release {}, this agent of release {}: {}",
               welcome.version, options_.hello.version,
               base::BesideText(welcome.version, options_.hello.version));
    }
  }
  HeartbeatLater();
  events_->OnCoordinatorConnected();
}

void CoordinatorClient::HeartbeatLater() {
  heartbeat_timer_.expires_after(
      absl::ToChronoNanoseconds(heartbeat_interval_));
  heartbeat_timer_.async_wait([this](const asio::error_code& error) {
    if (error || !connected_) return;
    Send(protocol::Heartbeat{std::exchange(unsaid_, {})});
    HeartbeatLater();
  });
}

void CoordinatorClient::Abandon(const absl::Status& why) {
  stream_->Cancel();
  Lost(why);
}

void CoordinatorClient::OnDone(uint64_t stream, const absl::Status& status) {
  if (stream != stream_number_ || stream_ == nullptr) return;
  Lost(status.ok() ? absl::UnavailableError("it ended the connection")
                   : status);
}

bool CoordinatorClient::IsHopeless(const absl::Status& why,
                                   absl::Duration now) const {
  if (!options_.hello.cluster_id.empty()) return false;
  const absl::Duration tried = now - started_;
  if (absl::IsAlreadyExists(why)) return tried >= options_.name_timeout;
  return IsRefusal(why) || tried >= options_.connect_timeout;
}

std::string CoordinatorClient::ReasonOf(const absl::Status& why,
                                        bool was_connected) const {
  const std::string message(why.message());
  const std::string coordinator =
      absl::StrCat("coordinator ", options_.address);
  if (IsRefusal(why)) {
    return absl::StrCat(coordinator, " refused this agent (", message, ")");
  }
  const auto trouble = was_connected || !absl::IsUnavailable(why)
                           ? std::nullopt
                           : base::TlsTroubleOf(message, options_.tls.given());
  return trouble
             ? absl::StrCat(coordinator, " cannot be reached (", trouble->what,
                            "); ", trouble->to_do)
             : absl::StrCat(coordinator, " cannot be reached (", message, ")");
}

void CoordinatorClient::Lost(const absl::Status& why) {
  stream_ = nullptr;
  words_.Clear();
  slow_since_.reset();
  said_slow_ = false;
  const bool was_connected = std::exchange(connected_, false);
  welcome_timer_.cancel();
  heartbeat_timer_.cancel();
  word_timer_.cancel();
  const absl::Duration now = base::MonotonicNow();
  const std::string reason = ReasonOf(why, was_connected);
  if (IsHopeless(why, now)) return events_->OnCoordinatorGivenUp(reason);
  const double share = std::uniform_real_distribution<>(0.5, 1.0)(random_);
  retry_timer_.expires_after(absl::ToChronoNanoseconds(share * backoff_));
  backoff_ = std::min(2 * backoff_, options_.max_backoff);
  retry_timer_.async_wait([this](const asio::error_code& error) {
    if (!error) Connect();
  });
  // A new reason is told, and logged where it is told to; one that stays is
  // said from time to time.
  if (was_connected || reason != last_reason_) {
    last_reason_ = reason;
    last_logged_ = now;
    events_->OnCoordinatorDisconnected(reason);
  } else if (now - last_logged_ >= kLogInterval) {
    last_logged_ = now;
    LOG_WARN("{}; trying on", reason);
  }
}

}  // namespace pactrain::agent
