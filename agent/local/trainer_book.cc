#include "agent/local/trainer_book.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/local/own_file.h"
#include "agent/local/processes.h"
#include "base/fd.h"
#include "base/hex.h"
#include "base/log.h"

namespace pactrain::agent {
namespace {

constexpr absl::string_view kHead = "pactrain trainers 1";
constexpr size_t kMaxBytes = 4 << 20;

// Of a line: job, model, rank, attach id, process, start, why it left.
constexpr size_t kFields = 7;

std::optional<BookedTrainer> ReadLine(absl::string_view line) {
  const std::vector<absl::string_view> fields =
      absl::StrSplit(line, absl::MaxSplits(' ', kFields - 1));
  BookedTrainer trainer;
  uint32_t model = 0;
  if (fields.size() != kFields || !absl::SimpleAtoi(fields[1], &model) ||
      model > UINT16_MAX || !absl::SimpleAtoi(fields[2], &trainer.rank) ||
      !absl::SimpleAtoi(fields[4], &trainer.process) || trainer.process <= 0 ||
      !absl::SimpleAtoi(fields[5], &trainer.start)) {
    return std::nullopt;
  }
  const auto attach_id = base::ParseDigest(fields[3]);
  if (!attach_id || !protocol::CheckName("job", fields[0]).ok()) {
    return std::nullopt;
  }
  trainer.group = {std::string(fields[0]), static_cast<uint16_t>(model)};
  trainer.attach_id = *attach_id;
  trainer.left = std::string(fields[6]);
  return trainer;
}

}  // namespace

std::string WriteBook(absl::string_view agent, absl::string_view place,
                      const std::vector<BookedTrainer>& trainers) {
  std::string text = absl::StrCat(kHead, "\n", agent, "\n", place, "\n");
  for (const BookedTrainer& t : trainers) {
    std::string left = t.left;
    std::replace(left.begin(), left.end(), '\n', ' ');
    absl::StrAppend(&text, t.group.job, " ", t.group.model, " ", t.rank, " ",
                    t.attach_id.ToString(), " ", t.process, " ", t.start, " ",
                    left, "\n");
  }
  return text;
}

std::optional<std::vector<BookedTrainer>> ReadBook(absl::string_view text,
                                                   absl::string_view agent,
                                                   absl::string_view place) {
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.size() < 4 || !lines.back().empty() || lines[0] != kHead ||
      lines[1] != agent || lines[2] != place || place.empty()) {
    return std::nullopt;
  }
  lines.pop_back();
  std::vector<BookedTrainer> trainers;
  for (size_t i = 3; i < lines.size(); ++i) {
    auto trainer = ReadLine(lines[i]);
    if (!trainer) return std::nullopt;
    trainers.push_back(*std::move(trainer));
  }
  return trainers;
}

TrainerBook::TrainerBook(asio::io_context& io, std::string path,
                         std::string agent, Gone gone)
    : io_(io),
      path_(std::move(path)),
      agent_(std::move(agent)),
      place_(PlaceOfProcesses()),
      gone_(std::move(gone)) {}

void TrainerBook::Open() {
  const auto former = ReadBook(ReadOwnFile(path_, kMaxBytes), agent_, place_);
  if (!former) return;
  for (const BookedTrainer& trainer : *former) {
    entries_.push_back(std::make_shared<Entry>(Entry{trainer, nullptr}));
    Entry& entry = *entries_.back();
    if (!trainer.left.empty()) {
      gone_(trainer);
      continue;
    }
    Former found = FindFormer(trainer.process, trainer.start);
    if (found.dead) {
      Tell(entry, absl::StrCat("ended while its agent was away (process ",
                               trainer.process, ")"));
    } else if (found.process.valid()) {
      Watch(entries_.back(), found.process.Release());
    }
  }
  Write();
}

void TrainerBook::Watch(const std::shared_ptr<Entry>& entry, int process) {
  entry->watched =
      std::make_unique<asio::posix::stream_descriptor>(io_, process);
  AwaitEnd(entry);
}

void TrainerBook::AwaitEnd(const std::shared_ptr<Entry>& entry) {
  entry->watched->async_wait(
      asio::posix::stream_descriptor::wait_read,
      [this, entry](const asio::error_code& error) {
        if (error || entry->watched == nullptr) return;
        if (!HasEnded(entry->watched->native_handle())) return AwaitEnd(entry);
        entry->watched.reset();
        Tell(*entry,
             absl::StrCat("ended (process ", entry->trainer.process, ")"));
        Write();
      });
}

void TrainerBook::Tell(Entry& entry, const std::string& why) {
  entry.trainer.left = why;
  gone_(entry.trainer);
}

void TrainerBook::Attached(uint64_t connection, BookedTrainer trainer) {
  if (place_.empty() || trainer.process <= 0) return;
  const auto start = StartOf(trainer.process);
  if (!start) return;
  trainer.start = *start;
  std::erase_if(entries_, [&](const auto& entry) {
    if (entry->trainer.group != trainer.group ||
        entry->trainer.attach_id.hi != trainer.attach_id.hi) {
      return false;
    }
    entry->watched.reset();
    return true;
  });
  entries_.push_back(
      std::make_shared<Entry>(Entry{std::move(trainer), nullptr}));
  by_connection_[connection] = entries_.back();
  Write();
}

void TrainerBook::Left(uint64_t connection, const std::string& why) {
  const auto it = by_connection_.find(connection);
  if (it == by_connection_.end()) return;
  it->second->trainer.left = why;
  by_connection_.erase(it);
  Write();
}

void TrainerBook::Write() {
  size_t gone = 0;
  for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
    if (!(*it)->trainer.left.empty() && ++gone > kMaxBookedGone) it->reset();
  }
  std::erase(entries_, nullptr);
  std::vector<BookedTrainer> trainers;
  for (const auto& entry : entries_) trainers.push_back(entry->trainer);
  if (ReplaceFile(path_, WriteBook(agent_, place_, trainers))) return;
  if (std::exchange(warned_, true)) return;
  LOG_WARN(
      "{} cannot be written ({}): if this agent is killed, the next one cannot "
      "say which of its trainers are dead",
      path_, std::strerror(errno));
}

}  // namespace pactrain::agent
