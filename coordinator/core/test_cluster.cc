#include "coordinator/core/test_cluster.h"

#include <algorithm>

#include "base/check.h"

namespace pactrain::coordinator {
namespace {

const char* const kCluster = "00112233445566778899aabbccddeeff";

protocol::Digest Id(uint64_t n) {
  return n == 0 ? protocol::Digest{} : protocol::Digest{n, n};
}

bool IsIn(const protocol::Generation& generation,
          const protocol::Digest& attach_id) {
  for (const protocol::Member& member : generation.members) {
    for (const protocol::Digest& id : member.attach_ids) {
      if (id == attach_id) return true;
    }
  }
  return false;
}

}  // namespace

TestCluster::TestCluster(const Options& options) : options_(options) {
  Start();
}

void TestCluster::Start() {
  history_ = History(history_.writers(), Id(next_id_++), restored_);
  auto state = CoordinatorState::Create(
      options_, {kCluster, term_, history_, first_generation_}, journal_, now_);
  PT_CHECK(state.ok());
  state_ = *std::move(state);
}

void TestCluster::Connect(const std::string& agent, const std::string& site,
                          bool same_process) {
  AgentProcess& process = agents_[agent];
  if (!same_process) process = {site, Id(next_id_++), 0, {}, {}, {}};
  process.stream = next_stream_++;
  Say(agent, protocol::AgentHello{agent,
                                  process.incarnation,
                                  site,
                                  "127.0.0.1:9",
                                  "t",
                                  "",
                                  "",
                                  process.history,
                                  {},
                                  proves});
}

void TestCluster::Disconnect(const std::string& agent) {
  Act(state_->OnStreamClosed(agents_.at(agent).stream, "cut", now_));
}

void TestCluster::RestartCoordinator() {
  ++term_;
  Start();
  Clear();
}

TestCluster::Copy TestCluster::Restore(const Copy& copy) {
  Copy there = {journal_, history_, term_};
  journal_ = copy.journal;
  history_ = copy.history;
  term_ = copy.term;
  RestartCoordinator();
  return there;
}

void TestCluster::RestoreOnPurpose() {
  constexpr uint64_t kBeyond = 1000;
  restored_ = Id(next_id_++);
  std::vector<Writer> writers = copy_.history.writers();
  writers.push_back({restored_, 1});
  copy_.history = History(writers, restored_);
  copy_.term += kBeyond;
  for (auto& [id, group] : copy_.journal.groups) {
    group.prepared.reset();
    group.last_version += kBeyond;
    first_generation_ =
        std::max(first_generation_, group.generation.number + kBeyond);
  }
  Restore();
}

void TestCluster::Advance(absl::Duration by) {
  now_ += by;
  Act(state_->Tick(now_));
}

void TestCluster::Pass(int seconds, const std::vector<std::string>& alive) {
  for (int i = 0; i < seconds; ++i) {
    for (const std::string& agent : alive) Say(agent, protocol::Heartbeat{});
    Advance(absl::Seconds(1));
  }
}

void TestCluster::Join(const std::string& agent, uint32_t rank, uint32_t world,
                       const std::string& launch) {
  protocol::Trainer trainer{
      rank, world,       Id(next_id_++), launch,  Id(model), "a network",
      100,  resume_step, on_shrink,      lineage, {}};
  trainer.declared = declared;
  trainer.parameters = parameters;
  trainer.onset = onset;
  trainer.replace = replace;
  trainer.proof = proof;
  if (!lineage.id.empty() || again) {
    trainer.last_attach_id = last_attach_ids_[{launch, rank}];
    if (!trainer.last_attach_id.empty()) {
      trainer.attach_id.hi = trainer.last_attach_id.hi;
    }
  }
  trainer.last_generation = std::max(
      {last_generation, BegunWith(trainer), seated_[trainer.last_attach_id]});
  last_attach_ids_[{launch, rank}] = trainer.attach_id;
  agents_.at(agent).trainers[rank] = trainer;
  Say(agent, protocol::TrainerJoined{group, trainer, 0, proven});
}

void TestCluster::Rejoin(const std::string& agent, uint32_t rank,
                         uint64_t generation) {
  Say(agent, protocol::TrainerJoined{group, agents_.at(agent).trainers.at(rank),
                                     generation});
}

void TestCluster::Leave(const std::string& agent, uint32_t rank,
                        const std::string& reason, bool generation_ended,
                        const std::vector<std::string>& unreached,
                        bool straggled) {
  Say(agent, protocol::TrainerLeft{
                 group, rank, agents_.at(agent).trainers.at(rank).attach_id,
                 reason, generation_ended,
                 generation_ended && on_shrink != protocol::OnShrink::kAbort,
                 unreached, straggled});
}

void TestCluster::Vote(const std::string& agent, uint32_t rank, uint64_t mask,
                       uint32_t steps_unchanged, bool inside, uint64_t layout) {
  const uint64_t generation = journal_.groups.at(group).generation.number;
  Say(agent, protocol::MaskVote{group, generation, rank, Id(layout), Id(mask),
                                steps_unchanged, 1, inside,
                                mask == 0 ? 100u : 30u, 100});
}

void TestCluster::Answer(const std::string& agent, uint64_t version,
                         bool accepted) {
  const uint64_t generation = journal_.groups.at(group).generation.number;
  Say(agent, protocol::PrepareAnswer{group, generation, version, accepted,
                                     "no buffers"});
}

void TestCluster::Report(const std::string& agent, uint64_t version,
                         uint64_t count) {
  const protocol::Generation& g = journal_.groups.at(group).generation;
  protocol::StepReport report;
  report.group = group;
  report.generation = g.number;
  report.committed_count = count;
  report.committed_step = g.base_step + count - (count > 0);
  report.decision_version = version;
  Say(agent, report);
}

void TestCluster::Pin(const std::optional<coordinator::Pin>& pin) {
  auto effects = state_->SetPin(group, pin, now_);
  PT_CHECK(effects.ok());
  Act(*std::move(effects));
}

void TestCluster::Say(const std::string& agent,
                      const protocol::AgentMessage& message) {
  Act(state_->OnMessage(agents_.at(agent).stream, message, now_));
}

protocol::Digest TestCluster::LineageOf(uint64_t generation) const {
  const auto it = lineages_.find({group, generation});
  return it == lineages_.end()
             ? protocol::Digest{generation + 1'000'000, generation}
             : it->second;
}

void TestCluster::Act(Effects effects) {
  if (!effects.records.empty()) history_.Wrote();
  for (const JournalRecord& record : effects.records) {
    journal_.Apply(record);
    if (const auto* formed = std::get_if<GenerationFormed>(&record)) {
      const protocol::Generation& g = formed->generation;
      lineages_[{g.group, g.number}] = g.lineage.id;
      for (const protocol::Member& member : g.members) {
        for (const auto& id : member.attach_ids) seated_[id] = g.number;
      }
    }
    records_.push_back(record);
  }
  for (const Effects::Send& send : effects.sends) {
    for (auto& [name, process] : agents_) {
      if (process.stream != send.stream) continue;
      inbox_[name].push_back(send.message);
      if (const auto* m = std::get_if<protocol::Welcome>(&send.message)) {
        process.history = m->history;
      } else if (const auto* start =
                     std::get_if<protocol::StartGeneration>(&send.message)) {
        for (const auto& [rank, trainer] : process.trainers) {
          if (!IsIn(start->generation, trainer.attach_id)) continue;
          process.local.With(protocol::TrainerJoined{
              start->generation.group, trainer, start->generation.number});
        }
      } else if (const auto* refused =
                     std::get_if<protocol::JoinRefused>(&send.message)) {
        process.local.With(protocol::TrainerLeft{
            refused->group, refused->rank, refused->attach_id, "was refused"});
      } else if (const auto* mark =
                     std::get_if<protocol::HistoryMark>(&send.message)) {
        process.history = *mark;
      }
    }
  }
  alarms_.insert(alarms_.end(), effects.alarms.begin(), effects.alarms.end());
  for (const Effects::Close& close : effects.closes) {
    closed_[close.stream] = close.status;
  }
}

absl::Status TestCluster::Closed(const std::string& agent) const {
  auto it = closed_.find(agents_.at(agent).stream);
  return it == closed_.end() ? absl::OkStatus() : it->second;
}

void TestCluster::FormFour() {
  Connect("a", "x");
  Connect("b", "y");
  Join("a", 0, 4);
  Join("a", 1, 4);
  Join("b", 2, 4);
  Join("b", 3, 4);
}

}  // namespace pactrain::coordinator
