// What an agent is about to tell the coordinator, at a pace at which it is
// never shut out as who floods (docs/security.md, "Budgets").
//
// What waits is told once, as it is by then: all of a group's trainers is
// state, so a newer one takes the older one's place, and a newer report takes
// along the older one's noise and what is said but once. So no more than two
// words of a group wait, and no group keeps another one from being told. An
// answer to a decision waits for nothing, and the votes that it is due to are
// told before it.
//
// Pure: no clock. Thread-compatible.
#ifndef PACTRAIN_AGENT_RPC_WORD_QUEUE_H_
#define PACTRAIN_AGENT_RPC_WORD_QUEUE_H_

#include <cstddef>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "base/token_bucket.h"
#include "protocol/control.h"

namespace pactrain::agent {

class WordQueue {
 public:
  WordQueue();

  // How many agents there are in this one's jobs, >= 1: all may have names of
  // one job key, which share a budget.
  void SetAgents(size_t agents);

  void Add(protocol::AgentMessage word);
  // What is to be told now, if anything: the caller does, and says with Told()
  // how long it was before it asks again.
  std::optional<protocol::AgentMessage> Next(absl::Duration now);
  void Told(size_t bytes, absl::Duration now);
  // None: nothing waits.
  std::optional<absl::Duration> next_at() const;
  // All words; the pace stays.
  void Clear();

 private:
  std::deque<protocol::AgentMessage> words_;
  ptrdiff_t urgent_ = 0;  // So many of the first ones do not wait.
  base::TokenBucket bucket_;
  double price_ = 1;  // Of a byte.
  absl::Duration free_at_ = absl::ZeroDuration();
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_RPC_WORD_QUEUE_H_
