#include "coordinator/driver/driver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/tls/mac.h"
#include "base/version.h"
#include "coordinator/driver/seat_proofs.h"
#include "protocol/limits.h"

namespace pactrain::coordinator {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kHelloTimeout = absl::Seconds(5);
constexpr absl::Duration kHealInterval = absl::Seconds(5);
// Streams that have not said Hello yet, beyond the agents.
constexpr int kMaxStrangers = 64;

// The same after a restart; of another coordinator, another.
base::Secret KeyOf(const base::Secret& cluster,
                   const protocol::Generation& generation) {
  return base::ComputeMac(
      cluster,
      {"pactrain key of a generation", generation.group.job,
       absl::StrCat(generation.group.model), absl::StrCat(generation.number),
       absl::StrCat(generation.term), generation.ComputeDigest().ToString()});
}

base::Secret ProofOf(const base::Secret& cluster,
                     const protocol::HistoryMark& mark) {
  return base::ComputeMac(
      cluster, {"pactrain history of a journal", mark.writer.ToString(),
                absl::StrCat(mark.batches), mark.before.ToString(),
                absl::StrCat(mark.batches_before), absl::StrCat(mark.total)});
}

CoordinatorState::Identity IdentityOf(const Journal& journal,
                                      absl::Duration now) {
  CoordinatorState::Identity identity = journal.identity();
  identity.epoch = absl::Now() - now;
  identity.version = base::kVersion;
  return identity;
}

absl::Status ShuttingDown() {
  return absl::UnavailableError("the coordinator is shutting down");
}

void Log(const Effects::Event& event) {
  if (event.warning) {
    LOG_WARN("{}", event.text);
  } else {
    LOG_INFO("{}", event.text);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Driver>> Driver::Create(const Options& options,
                                                       Journal* journal,
                                                       Clock clock) {
  const absl::Duration now = clock();
  ASSIGN_OR_RETURN(CoordinatorState state,
                   CoordinatorState::Create(options, IdentityOf(*journal, now),
                                            journal->recovered(), now));
  return std::unique_ptr<Driver>(
      new Driver(options, journal, std::move(clock), std::move(state)));
}

Driver::Driver(const Options& options, Journal* journal, Clock clock,
               CoordinatorState state)
    : options_(options),
      journal_(journal),
      clock_(std::move(clock)),
      audit_changed_(!journal->audit().changed.empty()),
      state_(std::move(state)),
      durable_(journal->recovered()),
      witnesses_(journal, static_cast<size_t>(options.max_agents)) {
  // So that the log itself says with which line each term began.
  trail_.OnAction({"coordinator started",
                   {"coordinator", ""},
                   "",
                   absl::StrCat("term ", journal->identity().term),
                   "",
                   ""},
                  Now());
  if (const std::string changed = journal->audit().changed; !changed.empty()) {
    WarnOfAudit({changed, "found at the start"}, {"coordinator", ""});
  }
}

Driver::~Driver() { Stop(); }

void Driver::Stop() {
  {
    base::MutexLock lock(&mu_);
    stopping_ = true;
  }
  stopping_cv_.NotifyAll();
  if (timer_.joinable()) timer_.join();
}

void Driver::SetTickListener(std::function<void()> listener) {
  tick_listener_ = std::move(listener);
}

void Driver::Start() {
  timer_ = std::thread([this] { Loop(); });
}

void Driver::Loop() {
  while (true) {
    {
      base::MutexLock lock(&mu_);
      if (!stopping_) stopping_cv_.WaitFor(&mu_, kTick);
      if (stopping_) return;
    }
    Tick();
    if (tick_listener_) tick_listener_();
  }
}

absl::StatusOr<StreamId> Driver::Open(std::shared_ptr<Stream> stream,
                                      const protocol::Caller& caller) {
  base::MutexLock lock(&mu_);
  if (draining_) return ShuttingDown();
  if (streams_.size() >=
      static_cast<size_t>(options_.max_agents) + kMaxStrangers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("too many streams: ", streams_.size(), " are open"));
  }
  const absl::Duration now = clock_();
  const StreamId id = next_stream_++;
  streams_[id] = {std::move(stream), caller, "", now, false, now, 0, {}};
  return id;
}

// Else anybody could stop the coordinator with a history that never was.
absl::Status Driver::CheckProof(const protocol::AgentMessage& message) const {
  const auto* hello = std::get_if<protocol::AgentHello>(&message);
  if (hello == nullptr || hello->history.empty()) return absl::OkStatus();
  const std::string& ours = journal_->identity().cluster_id;
  // Refused in other words.
  if (!hello->cluster_id.empty() && hello->cluster_id != ours) {
    return absl::OkStatus();
  }
  if (base::IsSameMac(hello->history.proof,
                      ProofOf(journal_->cluster_secret(), hello->history))) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "agent '", hello->agent,
      "' names a history of this coordinator's "
      "journal that this one's secret has not proven; restart the agent"));
}

void Driver::OnMessage(StreamId stream, protocol::AgentMessage message) {
  {
    Turn turn(*this);
    auto it = streams_.find(stream);
    if (it == streams_.end()) return;  // Closed; its last words.
    const absl::Duration now = clock_();
    if (const absl::Status flood = CheckFlood(it->second, message, now);
        !flood.ok()) {
      Run(state_.OnStreamClosed(stream, std::string(flood.message()), now));
      Shut(stream, flood);
    } else if (!IsReportTooMany(it->second, message)) {
      it->second.said_hello =
          true;  // If it was not Hello, it is closed anyway.
      const protocol::Caller caller = it->second.caller;
      Effects effects;
      if (const absl::Status proven = CheckProof(message); !proven.ok()) {
        effects.Warn(std::string(proven.message()));
        effects.closes.push_back({stream, proven});
      } else {
        message = WithProofs(journal_->cluster_secret(), std::move(message));
        effects = state_.OnMessage(stream, message, now);
      }
      HearWitness(it->second, message);
      trail_.OnMessage(stream, caller, message, effects, durable_, Now());
      Run(std::move(effects), {caller});
    }
  }
  Deliver();
}

void Driver::OnClosed(StreamId stream, const std::string& reason) {
  {
    Turn turn(*this);
    trail_.OnStreamClosed(stream);
    if (streams_.erase(stream) == 0) return;
    Run(state_.OnStreamClosed(stream, reason, clock_()));
  }
  Deliver();
}

void Driver::Tick() {
  {
    Turn turn(*this);
    const absl::Duration now = clock_();
    ShutMute(now);
    if (read_only_ && now >= next_heal_) TryHeal(now);
    Run(state_.Tick(now));
    if (!read_only_) {
      trail_.OnTick(Now());
      WriteAudit();
      TellHead(now);
    }
  }
  Deliver();
}

void Driver::Drain() {
  {
    Turn turn(*this);
    draining_ = true;
    ShutAll(ShuttingDown());
    if (!read_only_) WriteAudit();
  }
  Deliver();
}

StateSnapshot Driver::Snapshot() const {
  base::MutexLock lock(&mu_);
  StateSnapshot snapshot = state_.Snapshot(clock_());
  snapshot.audit_contradicted =
      witnesses_.contradicting() + (audit_changed_ ? 1 : 0);
  return snapshot;
}

absl::Status Driver::SetPin(const protocol::GroupId& group,
                            const std::optional<Pin>& pin,
                            const protocol::Caller& caller) {
  return Operate(
      [&](CoordinatorState& state, absl::Duration now) {
        return state.SetPin(group, pin, now);
      },
      caller);
}

absl::Status Driver::Forget(const std::string& job,
                            const protocol::Caller& caller) {
  // Without TLS nobody has a name.
  const std::string by = caller.who.empty() ? "an operator" : caller.who;
  return Operate([&](CoordinatorState& state,
                     absl::Duration now) { return state.Forget(job, by, now); },
                 caller);
}

std::vector<CoordinatorState::Participant> Driver::Participants() const {
  base::MutexLock lock(&mu_);
  return state_.Participants();
}

void Driver::Expel(const std::string& agent,
                   const std::optional<std::string>& job,
                   const std::string& reason, const protocol::Caller& caller) {
  {
    Turn turn(*this);
    trail_.OnRefused({"agent expelled", caller, job.value_or(""),
                      absl::StrCat("agent ", agent), reason, ""},
                     Now());
    Run(state_.Expel(agent, job, reason, clock_()), {caller});
  }
  Deliver();
}

absl::Status Driver::Operate(
    const std::function<absl::StatusOr<Effects>(CoordinatorState& state,
                                                absl::Duration now)>& change,
    const protocol::Caller& caller) {
  absl::Status status;
  {
    Turn turn(*this);
    RETURN_IF_ERROR(TakeChange(caller));
    auto effects = change(state_, clock_());
    if (effects.ok()) {
      Run(*std::move(effects), {caller, /*operates=*/true});
      if (read_only_) {
        status = absl::UnavailableError(
            "the coordinator's journal cannot be written; see its log");
      }
    } else {
      status = effects.status();
    }
  }
  Deliver();
  return status;
}

absl::Status Driver::Append(const std::vector<JournalRecord>& records,
                            const AuditTrail::Cause& cause) {
  const AuditTrail::Time now = Now();
  // What it leaves out becomes a line that waits.
  std::vector<protocol::AuditEvent> caused =
      trail_.LinesOf(records, cause, durable_, now);
  const std::vector<protocol::AuditEvent> waiting = trail_.Take(now);
  std::vector<protocol::AuditEvent> lines = waiting;
  for (protocol::AuditEvent& line : caused) lines.push_back(std::move(line));
  mu_.Unlock();
  const absl::Status written = journal_->Append(records, lines);
  mu_.Lock();
  if (!written.ok()) trail_.PutBack(waiting);
  return written;
}

void Driver::Run(Effects effects, const AuditTrail::Cause& cause) {
  if (!effects.records.empty()) {
    const absl::Status status = Append(effects.records, cause);
    if (!status.ok()) return Fail(status);
    for (const JournalRecord& record : effects.records) durable_.Apply(record);
  }
  for (Effects::Event& event : effects.events) {
    outbox_.push_back({nullptr, std::move(event)});
  }
  for (Effects::Send& send : effects.sends) {
    auto it = streams_.find(send.stream);
    if (it != streams_.end()) {
      if (auto* start = std::get_if<protocol::StartGeneration>(&send.message)) {
        start->key = KeyOf(journal_->cluster_secret(), start->generation);
        TellSeats(journal_->cluster_secret(), it->second.agent, *start);
      } else if (auto* welcome =
                     std::get_if<protocol::Welcome>(&send.message)) {
        Prove(welcome->history);
      } else if (auto* mark =
                     std::get_if<protocol::HistoryMark>(&send.message)) {
        Prove(*mark);
      }
      outbox_.push_back({it->second.stream, std::move(send.message)});
    }
  }
  for (Effects::Close& close : effects.closes) {
    Shut(close.stream, std::move(close.status));
  }
}

void Driver::Prove(protocol::HistoryMark& mark) const {
  if (mark.empty()) return;
  mark.proof = ProofOf(journal_->cluster_secret(), mark);
  mark.audit = witnesses_.Head();
}

void Driver::Fail(const absl::Status& status) {
  const absl::Duration now = clock_();
  Warn(absl::StrCat(
      "THE JOURNAL CANNOT BE WRITTEN: ", status.message(),
      "; read-only from now on: nothing is formed or decided, running "
      "generations go on; free the disk"));
  read_only_ = true;
  next_heal_ = now + kHealInterval;
  // The core is ahead of the journal: back to what is durable, as after a
  // restart. The same options and identity were accepted before.
  state_ = *CoordinatorState::Create(options_, IdentityOf(*journal_, now),
                                     durable_, now);
  state_.SetReadOnly(true);
  ShutAll(
      absl::UnavailableError("the coordinator's journal cannot be written, it "
                             "is read-only: connect again"));
}

void Driver::TryHeal(absl::Duration now) {
  next_heal_ = now + kHealInterval;
  mu_.Unlock();
  const absl::Status status = journal_->Append({}, {});
  mu_.Lock();
  if (!status.ok()) {
    Warn(absl::StrCat("the journal still cannot be written: ",
                      status.message()));
    return;
  }
  read_only_ = false;
  state_.SetReadOnly(false);
  Warn("the journal can be written again");
}

void Driver::Shut(StreamId stream, absl::Status status) {
  auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  outbox_.push_back({std::move(it->second.stream), std::move(status)});
  trail_.OnStreamClosed(stream);
  streams_.erase(it);
}

void Driver::ShutMute(absl::Duration now) {
  std::vector<StreamId> mute;
  for (const auto& [id, stream] : streams_) {
    if (!stream.said_hello && now - stream.opened_at > kHelloTimeout)
      mute.push_back(id);
  }
  for (StreamId id : mute) {
    Shut(id, absl::DeadlineExceededError(absl::StrCat(
                 "no Hello within ", absl::FormatDuration(kHelloTimeout))));
  }
}

void Driver::ShutAll(const absl::Status& status) {
  while (!streams_.empty()) Shut(streams_.begin()->first, status);
}

void Driver::Warn(std::string text) {
  outbox_.push_back({nullptr, Effects::Event{true, std::move(text)}});
}

void Driver::Deliver() {
  while (true) {
    std::deque<Outgoing> batch;
    {
      base::MutexLock lock(&mu_);
      if (delivering_ || outbox_.empty()) return;
      delivering_ = true;
      batch.swap(outbox_);
    }
    for (const Outgoing& out : batch) {
      if (const auto* event = std::get_if<Effects::Event>(&out.what)) {
        Log(*event);
      } else if (const auto* status = std::get_if<absl::Status>(&out.what)) {
        out.stream->Close(*status);
      } else {
        out.stream->Send(std::get<protocol::CoordinatorMessage>(out.what));
      }
    }
    base::MutexLock lock(&mu_);
    delivering_ = false;
  }
}

}  // namespace pactrain::coordinator
