// The agents that the coordinator knows and whether they are heard (liveness).
//
// An agent whose stream broke stays known: its trainers may well go on. Another
// process under its name (a new incarnation) is let in only when the old one is
// no longer heard.
//
// Pure. Thread-compatible. Copyable.
#ifndef PACTRAIN_COORDINATOR_CORE_AGENTS_H_
#define PACTRAIN_COORDINATOR_CORE_AGENTS_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/options.h"
#include "protocol/control.h"

namespace pactrain::coordinator {

struct Agent {
  std::string name;
  protocol::Digest incarnation;
  std::string site;
  std::string data_address;
  std::string version;  // Of its software.
  // Empty: there is none that others reach.
  std::string metrics_address;
  StreamId stream = 0;        // 0: none.
  absl::Duration last_heard;  // Of its stream.
  absl::Duration changed_at;  // When the stream was opened or lost.
  bool proves = false;        // As AgentHello has it.

  bool connected() const { return stream != 0; }
};

class Agents {
 public:
  // `now` is when the coordinator began: agents never heard are absent since
  // then.
  Agents(const Options& options, absl::Duration now)
      : options_(options), start_(now) {}

  // Lets an agent in (again). Returns the same process's older stream, which is
  // to be closed; 0: none.
  //   FailedPrecondition: the stream has said Hello already.
  //   AlreadyExists:      another process with this name is still heard.
  //   ResourceExhausted:  too many agents.
  absl::StatusOr<StreamId> Admit(StreamId stream,
                                 const protocol::AgentHello& hello,
                                 absl::Duration now);

  // Notes that the stream was heard. Null: it is no agent's.
  const Agent* Hear(StreamId stream, absl::Duration now);
  // The agent loses its stream. Null: it is no agent's.
  const Agent* Disconnect(StreamId stream, absl::Duration now);
  const Agent* Find(const std::string& name) const;
  // Streams not heard for agent_timeout.
  std::vector<StreamId> Silent(absl::Duration now) const;

  // This process has had no stream for at least `how_long`, or another one has
  // taken its name.
  bool IsGone(const std::string& name, const protocol::Digest& incarnation,
              absl::Duration how_long, absl::Duration now) const;

  // Removes agents that have had no stream for `how_long`.
  void ForgetGone(absl::Duration how_long, absl::Duration now);
  const std::map<std::string, Agent>& all() const { return agents_; }

 private:
  Options options_;
  absl::Duration start_;
  std::map<std::string, Agent> agents_;
  std::map<StreamId, std::string> by_stream_;
};

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_AGENTS_H_
