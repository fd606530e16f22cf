#include "coordinator/driver/audit_trail.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/counted.h"
#include "protocol/identity.h"

namespace pactrain::coordinator {
namespace {

using protocol::AuditEvent;
using protocol::Caller;

// What it decides by itself.
const Caller kCoordinator = {"coordinator", ""};

std::string TimeText(absl::Time wall) {
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", wall, absl::UTCTimeZone());
}

std::string TooManyText() {
  return absl::StrCat("more than ", LineBudget::kMaxLinesOfOne,
                      " in ten minutes, or of one job more than are left then");
}

std::string ModeAndCodec(protocol::Mode mode, protocol::Codec codec) {
  return absl::StrCat(protocol::ModeName(mode), " ",
                      protocol::CodecName(codec));
}

std::string TextOf(const protocol::Decision& decision) {
  std::string text = absl::StrCat("decision ", decision.version, ": ",
                                  ModeAndCodec(decision.mode, decision.codec));
  if (!decision.mask_digest.empty()) {
    absl::StrAppend(&text, ", mask set ", decision.mask_digest.ToString());
  }
  return text;
}

// Adds the lines of one record to `lines`.
struct LineWriter {
  const AuditTrail::Cause& cause;
  const std::map<std::string, Caller>& agents;  // By name.
  std::vector<AuditEvent> lines = {};
  bool always = false;  // It is never left out.

  const Caller& caller = cause.caller;

  void Add(absl::string_view kind, const Caller& who,
           const protocol::GroupId& group, std::string what,
           std::string why = "") {
    lines.push_back({std::string(kind), who, group.ToString(), std::move(what),
                     std::move(why), ""});
  }

  // Of no job.
  void AddAlways(absl::string_view kind, std::string what,
                 std::string why = "") {
    lines.push_back(
        {std::string(kind), caller, "", std::move(what), std::move(why), ""});
    always = true;
  }

  void operator()(const GenerationFormed& r) {
    const protocol::Generation& g = r.generation;
    Add("generation formed", kCoordinator, g.group,
        absl::StrCat("generation ", g.number, " of ",
                     base::Counted(g.world_size, "rank"), " on ",
                     base::Counted(g.members.size(), "agent"), ", launch '",
                     g.launch, "', from step ", g.base_step, ", ",
                     g.donor ? "goes on with" : "begins", " lineage ",
                     g.lineage.id.ToString(), " after ", g.lineage.committed,
                     " steps; ", TextOf(g.decision)),
        g.decision.reason);
    for (const protocol::Member& member : g.members) {
      const auto agent = agents.find(member.agent);
      Add("join",
          agent == agents.end() ? Caller{member.agent, ""} : agent->second,
          g.group,
          absl::StrCat("agent ", member.agent, " of site ", member.site,
                       " with ranks ", absl::StrJoin(member.ranks, ", "),
                       ", generation ", g.number));
    }
  }
  void operator()(const GenerationEnded& r) {
    Add("generation ended", kCoordinator, r.group,
        absl::StrCat("generation ", r.generation), r.reason);
  }
  void operator()(const LineageEnded& r) {
    Add("lineage ended", caller, r.group,
        absl::StrCat("lineage ", r.lineage.ToString()), r.how);
    always = cause.operates;
  }
  void operator()(const DecisionMade& r) {
    Add("decision", kCoordinator, r.group, TextOf(r.decision),
        r.decision.reason);
  }
  void operator()(const DecisionRevoked& r) {
    Add("decision revoked", kCoordinator, r.group,
        absl::StrCat("decision ", r.version), r.reason);
  }
  void operator()(const PinSet& r) {
    Add("pin", caller, r.group,
        r.pin ? ModeAndCodec(r.pin->mode, r.pin->codec) : "unpinned");
    always = true;
  }
  void operator()(const GroupForgotten& r) {
    Add("job forgotten", kCoordinator, r.group, "to make room", r.why);
  }
  void operator()(const IdentityDenied& r) { AddAlways("evicted", r.who); }
  void operator()(const IdentityReadmitted& r) {
    AddAlways("readmitted", r.who);
  }
  void operator()(const AgentDrained& r) {
    AddAlways("agent drained", absl::StrCat("agent ", r.agent),
              r.force ? "by an operator, --force" : "by an operator");
  }
  void operator()(const AgentUndrained& r) {
    AddAlways("agent undrained", absl::StrCat("agent ", r.agent), r.how);
  }
  // Both come with the steps.
  void operator()(const MaskSetStable&) {}
  void operator()(const StepsReserved&) {}
  // Each has a line when its agent says so.
  void operator()(const TrainersDetached&) {}
};

// That a record is about; none: it is about no job.
std::optional<protocol::GroupId> GroupOf(const JournalRecord& record) {
  return std::visit(
      [](const auto& r) -> std::optional<protocol::GroupId> {
        if constexpr (requires { r.generation.group; }) {
          return r.generation.group;
        } else if constexpr (requires { r.group; }) {
          return r.group;
        } else {
          return std::nullopt;
        }
      },
      record);
}

// The agents that it is about, also those that were in the generation before.
std::vector<protocol::Member> MembersOf(const JournalRecord& record,
                                        const protocol::GroupId& id,
                                        const Recovered& known) {
  std::vector<protocol::Member> members;
  if (const auto* formed = std::get_if<GenerationFormed>(&record)) {
    members = formed->generation.members;
  }
  if (const auto group = known.groups.find(id); group != known.groups.end()) {
    const auto& before = group->second.generation.members;
    members.insert(members.end(), before.begin(), before.end());
  }
  return members;
}

// Who speaks for an agent, also for one that is away: one with a job's key is
// as all of that job that are.
Caller CallerOf(const std::string& agent,
                const std::map<std::string, Caller>& agents) {
  if (const auto it = agents.find(agent); it != agents.end()) return it->second;
  const protocol::Identity identity = protocol::AgentCalled(agent);
  return {identity.job.empty() ? identity.ToString()
                               : absl::StrCat("job/", identity.job),
          ""};
}

// Whether the rank of this attach is of the newest generation, at `agent`.
bool IsMember(const protocol::Generation& generation, const std::string& agent,
              const protocol::TrainerLeft& left) {
  for (const protocol::Member& member : generation.members) {
    if (member.agent != agent) continue;
    for (size_t i = 0; i < member.ranks.size(); ++i) {
      if (member.ranks[i] == left.rank) {
        return member.attach_ids[i] == left.attach_id;
      }
    }
  }
  return false;
}

}  // namespace

std::vector<AuditEvent> AuditTrail::LinesOf(
    const std::vector<JournalRecord>& records, const Cause& cause,
    const Recovered& known, const Time& now) {
  const std::map<std::string, Caller> agents = Callers();
  std::vector<AuditEvent> lines;
  for (const JournalRecord& record : records) {
    LineWriter writer{cause, agents};
    std::visit(writer, record);
    if (writer.lines.empty()) continue;
    // Of its job's agents the one with most left, so that none hides what
    // happens to a job of others; of no job who caused it.
    const std::optional<protocol::GroupId> group = GroupOf(record);
    const std::string job = group ? group->job : "";
    std::optional<Caller> payer;
    if (group) payer = PayerOf(MembersOf(record, *group, known), job, agents);
    if (!writer.always &&
        !Takes(payer.value_or(cause.caller), job, writer.lines.size(), now)) {
      continue;
    }
    for (AuditEvent& line : writer.lines) {
      line.at = TimeText(now.wall);
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

void AuditTrail::OnMessage(StreamId stream, const Caller& caller,
                           const protocol::AgentMessage& message,
                           const Effects& effects, const Recovered& known,
                           const Time& now) {
  if (const auto* hello = std::get_if<protocol::AgentHello>(&message)) {
    OnHello(stream, caller, *hello, effects, now);
  } else if (const auto* local =
                 std::get_if<protocol::LocalTrainers>(&message)) {
    OnLeft(stream, *local, known, now);
  }
  for (const Effects::Alarm& alarm : effects.alarms) {
    Add({"gradient alarm", caller, alarm.group.ToString(), alarm.what, "", ""},
        now);
  }
  for (const Effects::Send& send : effects.sends) {
    const auto* refused = std::get_if<protocol::JoinRefused>(&send.message);
    if (refused == nullptr) continue;
    const auto agent = agents_.find(send.stream);
    OnRefused(
        {"join refused", agent == agents_.end() ? caller : agent->second.caller,
         refused->group.ToString(), absl::StrCat("rank ", refused->rank),
         refused->reason, ""},
        now);
  }
}

void AuditTrail::OnHello(StreamId stream, const Caller& caller,
                         const protocol::AgentHello& hello,
                         const Effects& effects, const Time& now) {
  const std::string what = absl::StrCat("agent ", hello.agent, " of site ",
                                        hello.site, " at ", hello.data_address);
  for (const Effects::Close& close : effects.closes) {
    if (close.stream != stream) continue;
    agents_.erase(stream);
    OnRefused({"agent refused", caller, "", what,
               std::string(close.status.message()), ""},
              now);
    return;
  }
  // Once for each stream: the second Hello of one closes it.
  agents_[stream] = {hello.agent, caller};
  named_ |= caller.who != Caller().who;
  if (Takes(caller, "", 1, now)) {
    Add({"agent connected", caller, "", what, "", ""}, now);
  }
}

void AuditTrail::OnLeft(StreamId stream, const protocol::LocalTrainers& local,
                        const Recovered& known, const Time& now) {
  const auto agent = agents_.find(stream);
  const auto group = known.groups.find(local.group);
  if (agent == agents_.end() || group == known.groups.end()) return;
  const protocol::Generation& generation = group->second.generation;
  std::map<std::string, std::vector<uint32_t>> by_reason;
  for (const protocol::TrainerLeft& left : local.left) {
    if (!IsMember(generation, agent->second.name, left)) continue;
    std::erase_if(left_, [&](const auto& entry) {
      return std::get<0>(entry) == local.group &&
             std::get<1>(entry) != generation.number;
    });
    if (left_.emplace(local.group, generation.number, left.rank).second) {
      by_reason[left.reason].push_back(left.rank);
    }
  }
  for (const auto& [reason, ranks] : by_reason) {
    const auto payer = PayerOf(generation.members, local.group.job, Callers());
    if (!Takes(payer.value_or(agent->second.caller), local.group.job, 1, now)) {
      continue;
    }
    Add({"leave", agent->second.caller, local.group.ToString(),
         absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(ranks, ", "), " of generation ",
                      generation.number),
         reason, ""},
        now);
  }
}

void AuditTrail::OnAction(AuditEvent event, const Time& now) {
  event.at = TimeText(now.wall);
  waiting_.push_back(std::move(event));
}

void AuditTrail::OnRefused(AuditEvent event, const Time& now) {
  const std::string text =
      absl::StrCat(event.kind, "|", event.caller.who, "|", event.caller.serial,
                   "|", event.job, "|", event.what, "|", event.why);
  switch (refusals_.Hear(text, now.monotonic, SourceOf(event.caller))) {
    case base::RepeatFilter::Word::kNews:
      return Add(std::move(event), now);
    case base::RepeatFilter::Word::kFirstTooMany:
      return Add({"left out", event.caller, "",
                  "more refusals of it, for ten minutes", "", ""},
                 now);
    default:
      return;
  }
}

std::map<std::string, Caller> AuditTrail::Callers() const {
  std::map<std::string, Caller> agents;
  for (const auto& [stream, agent] : agents_) {
    agents[agent.name] = agent.caller;
  }
  return agents;
}

std::optional<Caller> AuditTrail::PayerOf(
    const std::vector<protocol::Member>& members, const std::string& job,
    const std::map<std::string, Caller>& agents) const {
  std::optional<Caller> payer;
  for (const protocol::Member& member : members) {
    const Caller agent = CallerOf(member.agent, agents);
    if (!payer || budget_.RoomOf(agent, job) > budget_.RoomOf(*payer, job)) {
      payer = agent;
    }
  }
  return payer;
}

bool AuditTrail::Takes(const Caller& caller, const std::string& job,
                       uint64_t lines, const Time& now) {
  if (!named_) return true;
  OnTick(now);
  const LineBudget::Word word = budget_.Take(caller, job, lines, now.monotonic);
  if (word == LineBudget::Word::kFirstLeftOut) {
    OnAction({"left out", caller, job, "more lines that count as its",
              TooManyText(), ""},
             now);
  }
  return word == LineBudget::Word::kKept;
}

void AuditTrail::OnTick(const Time& now) {
  for (const LineBudget::LeftOut& out : budget_.TakeOver(now.monotonic)) {
    OnAction({"left out", out.caller, out.job,
              absl::StrCat(base::Counted(out.lines, "line"),
                           " that counted as its since ",
                           TimeText(now.wall - (now.monotonic - out.since))),
              TooManyText(), ""},
             now);
  }
}

void AuditTrail::Add(AuditEvent event, const Time& now) {
  if (waiting_.size() >= kMaxWaiting) {
    ++left_out_;
  } else {
    OnAction(std::move(event), now);
  }
}

std::vector<AuditEvent> AuditTrail::Take(const Time& now) {
  std::vector<AuditEvent> lines = std::exchange(waiting_, {});
  if (left_out_ > 0) {
    lines.push_back(
        {"left out", kCoordinator, "",
         absl::StrCat(left_out_, left_out_ == 1 ? " line" : " lines"),
         absl::StrCat("more than ", kMaxWaiting, " waited"),
         TimeText(now.wall)});
  }
  left_out_ = 0;
  return lines;
}

void AuditTrail::PutBack(const std::vector<AuditEvent>& lines) {
  waiting_.insert(waiting_.begin(), lines.begin(), lines.end());
}

}  // namespace pactrain::coordinator
