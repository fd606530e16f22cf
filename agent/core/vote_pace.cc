#include "agent/core/vote_pace.h"

#include <algorithm>

#include "protocol/limits.h"

namespace pactrain::agent {
namespace {

// As protobuf, texts apart, and rounded up.
constexpr size_t kBytesHere = 352;
constexpr size_t kBytesLeft = 64;
constexpr size_t kBytesVote = 96;
constexpr size_t kBytesReport = 1024;

size_t BytesOf(const protocol::LocalTrainers& told) {
  size_t bytes = protocol::kBytesOfMessage + told.group.job.size();
  for (const protocol::TrainerJoined& here : told.here) {
    bytes += kBytesHere + here.trainer.launch.size() +
             here.trainer.model_summary.size();
  }
  for (const protocol::TrainerLeft& left : told.left) {
    bytes += kBytesLeft + left.reason.size();
    for (const std::string& agent : left.unreached) bytes += 2 + agent.size();
  }
  for (const protocol::MaskVote& vote : told.votes) {
    bytes += kBytesVote + vote.moved.size();
  }
  return bytes + (told.report ? kBytesReport : 0);
}

}  // namespace

double VotePace::BytesPerSecond(size_t agents) {
  return protocol::kMaxBytesPerSecond *
         std::min(0.5, 0.75 * protocol::kIdentitiesOfAJobKey /
                           static_cast<double>(agents));
}

bool VotePace::HasRoom(size_t agents, absl::Duration now) {
  room_ = std::min(kBytesAtOnce, room_ + absl::ToDoubleSeconds(now - at_) *
                                             BytesPerSecond(agents));
  at_ = now;
  return room_ > 0;
}

void VotePace::Spend(const protocol::LocalTrainers& told) {
  room_ -= static_cast<double>(BytesOf(told));
}

}  // namespace pactrain::agent
