#include "coordinator/core/decisions.h"

#include <algorithm>

namespace pactrain::coordinator {

using protocol::Decision;

Decisions::Decisions(const Recovered::Group& recovered)
    : last_version_(recovered.last_version),
      in_force_(recovered.generation.decision),
      prepared_(recovered.prepared),
      history_(recovered.history) {}

const Decision& Decisions::Number(Decision decision) {
  decision.version = ++last_version_;
  history_.insert(history_.begin(), std::move(decision));
  if (history_.size() > kMaxHistory) history_.pop_back();
  return history_.front();
}

const Decision& Decisions::Start(Decision decision) {
  prepared_.reset();
  in_force_ = Number(std::move(decision));
  return in_force_;
}

const Decision& Decisions::Prepare(Decision decision) {
  prepared_ = Number(std::move(decision));
  return *prepared_;
}

bool Decisions::Knows(uint64_t version) const {
  return version <= in_force_.version ||
         std::any_of(history_.begin(), history_.end(),
                     [&](const Decision& d) { return d.version == version; });
}

bool Decisions::SetInForce(uint64_t version) {
  if (version <= in_force_.version) return false;
  auto it =
      std::find_if(history_.begin(), history_.end(),
                   [&](const Decision& d) { return d.version == version; });
  if (it == history_.end()) return false;
  in_force_ = *it;
  if (prepared_ && prepared_->version <= version) prepared_.reset();
  return true;
}

}  // namespace pactrain::coordinator
