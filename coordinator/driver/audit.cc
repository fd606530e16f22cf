// What of the driver is about the audit log, and what agents keep of it.
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "coordinator/driver/driver.h"

namespace pactrain::coordinator {
namespace {

// How long a line may wait until agents hear of it where nothing is decided.
constexpr absl::Duration kTellHead = absl::Seconds(5);

}  // namespace

void Driver::WriteAudit() {
  if (!trail_.waits()) return;
  const absl::Status written = Append({}, {});
  if (!written.ok()) Fail(written);
}

void Driver::OnRefused(protocol::AuditEvent event) {
  base::MutexLock lock(&mu_);
  trail_.OnRefused(std::move(event), Now());
}

absl::StatusOr<protocol::AuditPage> Driver::ReadAudit(uint64_t after) {
  absl::StatusOr<protocol::AuditPage> page;
  {
    Turn turn(*this);
    if (!read_only_) WriteAudit();
    page = journal_->ReadAudit(after);
  }
  Deliver();
  return page;
}

void Driver::HearWitness(OpenStream& stream,
                         const protocol::AgentMessage& message) {
  std::vector<protocol::AuditHead> heads;
  if (const auto* hello = std::get_if<protocol::AgentHello>(&message)) {
    stream.agent = hello->agent;
    heads = hello->audit;
  } else if (const auto* beat = std::get_if<protocol::Heartbeat>(&message)) {
    if (!beat->audit.empty()) heads.push_back(beat->audit);
  }
  if (stream.agent.empty() || heads.empty()) return;
  const auto trouble = witnesses_.Hear(stream.agent, heads, clock_());
  // Not by the filter of refusals, which strangers can fill.
  if (!trouble || !changed_.IsNews(trouble->what + trouble->why, clock_())) {
    return;
  }
  WarnOfAudit(*trouble, stream.caller);
}

void Driver::WarnOfAudit(const Witnesses::Trouble& trouble,
                         const protocol::Caller& caller) {
  trail_.OnAction(
      {"audit log changed", caller, "", trouble.what, trouble.why, ""}, Now());
  Warn(absl::StrCat("THE AUDIT LOG WAS CHANGED: ", trouble.what, ": ",
                    trouble.why,
                    "; see pactrain-admin audit --verify, and who may write "
                    "to the state directory"));
}

void Driver::TellHead(absl::Duration now) {
  const uint64_t newest = journal_->audit().newest;
  protocol::HistoryMark mark = journal_->identity().history.mark();
  if (newest == told_head_ || now < next_head_ || mark.empty()) return;
  told_head_ = newest;
  next_head_ = now + kTellHead;
  Prove(mark);
  for (const auto& [id, stream] : streams_) {
    if (!stream.agent.empty()) outbox_.push_back({stream.stream, mark});
  }
}

std::vector<Witness> Driver::AuditWitnesses() const {
  base::MutexLock lock(&mu_);
  std::set<std::string> connected;
  for (const auto& [id, stream] : streams_) connected.insert(stream.agent);
  std::vector<Witness> all = witnesses_.all();
  for (Witness& witness : all) {
    witness.connected = connected.contains(witness.agent);
  }
  return all;
}

}  // namespace pactrain::coordinator
