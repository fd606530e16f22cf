#include "agent/rpc/word_queue.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <variant>

#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

using protocol::AgentMessage;
using protocol::LocalTrainers;
using protocol::StepReport;

// The coordinator may count what this agent's last process told.
constexpr double kShareAtOnce = 0.4;
// It counts frames and TLS, too.
constexpr double kShareOfRate = 0.75;

// The one of that kind and group that waits.
template <typename T>
std::deque<AgentMessage>::iterator Find(std::deque<AgentMessage>& words,
                                        const protocol::GroupId& group) {
  return std::find_if(words.begin(), words.end(), [&](const auto& word) {
    const T* other = std::get_if<T>(&word);
    return other != nullptr && other->group == group;
  });
}

// `older` was not told. Means of steps are those of `newer` alone.
void TakeAlong(const StepReport& older, StepReport& newer) {
  if (older.generation != newer.generation) return;
  newer.noise.insert(newer.noise.begin(), older.noise.begin(),
                     older.noise.end());
  if (newer.noise.size() > protocol::kMaxNoiseSamples) {
    newer.noise.erase(newer.noise.begin(),
                      newer.noise.end() - protocol::kMaxNoiseSamples);
  }
  if (!newer.keep_by_parameter) {
    newer.keep_by_parameter = older.keep_by_parameter;
  }
}

}  // namespace

WordQueue::WordQueue()
    : bucket_(kShareOfRate * protocol::kMaxBytesPerSecond,
              static_cast<uint64_t>(kShareAtOnce * protocol::kMaxBytesAtOnce)) {
}

void WordQueue::SetAgents(size_t agents) {
  price_ = std::max(
      1.0, static_cast<double>(agents) / protocol::kIdentitiesOfAJobKey);
}

void WordQueue::Add(AgentMessage word) {
  if (const auto* local = std::get_if<LocalTrainers>(&word)) {
    const auto older = Find<LocalTrainers>(words_, local->group);
    if (older == words_.end()) return words_.push_back(std::move(word));
    // What it has of steps may be newer than a report that waits behind it.
    const auto report = Find<StepReport>(words_, local->group);
    *older = std::move(word);
    if (older - words_.begin() >= urgent_ && report > older &&
        report != words_.end()) {
      std::rotate(older, report, report + 1);
    }
  } else if (auto* report = std::get_if<StepReport>(&word)) {
    const auto older = Find<StepReport>(words_, report->group);
    if (older == words_.end()) return words_.push_back(std::move(word));
    TakeAlong(std::get<StepReport>(*older), *report);
    *older = std::move(word);
  } else {
    if (const auto* answer = std::get_if<protocol::PrepareAnswer>(&word)) {
      const auto votes = Find<LocalTrainers>(words_, answer->group);
      if (votes - words_.begin() >= urgent_ && votes != words_.end()) {
        std::rotate(words_.begin() + urgent_++, votes, votes + 1);
      }
    }
    words_.insert(words_.begin() + urgent_++, std::move(word));
  }
}

std::optional<AgentMessage> WordQueue::Next(absl::Duration now) {
  if (words_.empty() || (urgent_ == 0 && now < free_at_)) return std::nullopt;
  AgentMessage word = std::move(words_.front());
  words_.pop_front();
  if (urgent_ > 0) --urgent_;
  return word;
}

void WordQueue::Told(size_t bytes, absl::Duration now) {
  const double cost =
      price_ * static_cast<double>(bytes + protocol::kBytesOfMessage);
  free_at_ = now + bucket_.Take(static_cast<uint64_t>(cost), now);
}

void WordQueue::Clear() {
  words_.clear();
  urgent_ = 0;
}

std::optional<absl::Duration> WordQueue::next_at() const {
  if (words_.empty()) return std::nullopt;
  return urgent_ > 0 ? absl::ZeroDuration() : free_at_;
}

}  // namespace pactrain::agent
