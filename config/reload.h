// What SIGHUP asks a daemon for: it reads its settings again.
//
// log-level is in force at once. The log names the others that changed, which
// a restart takes. A mistake changes nothing, and is logged. Files that
// settings name, as certificates, are not its business: whoever uses them reads
// them again by itself.
//
// Thread-compatible.
#ifndef PACTRAIN_CONFIG_RELOAD_H_
#define PACTRAIN_CONFIG_RELOAD_H_

#include <memory>
#include <string>
#include <vector>

#include "config/command_line.h"

namespace pactrain::config {

class Reload {
 public:
  // `running` is what Load() made of `defaults`.
  // REQUIRES: the settings have a log-level.
  Reload(Program program, int argc, const char* const* argv,
         const Message& defaults, const Message& running);

  void operator()() const;

 private:
  const Program program_;
  const std::vector<std::string> words_;
  const std::unique_ptr<Message> defaults_;
  const std::unique_ptr<Message> running_;
};

}  // namespace pactrain::config

#endif  // PACTRAIN_CONFIG_RELOAD_H_
