// Small files beside the socket, for the agent's own next process.
//
// Neither is made durable: who writes may be killed, the machine must not go
// down.
#ifndef PACTRAIN_AGENT_LOCAL_OWN_FILE_H_
#define PACTRAIN_AGENT_LOCAL_OWN_FILE_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace pactrain::agent {

// Empty: there is none, it has more than `most` bytes, or it is not ours alone.
std::string ReadOwnFile(const std::string& path, size_t most);

// All of it or what was there before. False: errno says why not.
bool ReplaceFile(const std::string& path, absl::string_view text);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_LOCAL_OWN_FILE_H_
