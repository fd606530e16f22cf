// Takes away the socket file that an agent leaves when it is killed.
#ifndef PACTRAIN_TRAINER_DEAD_SOCKET_H_
#define PACTRAIN_TRAINER_DEAD_SOCKET_H_

#include <string>

namespace pactrain::trainer {

// Removes the socket at `path` if nobody listens there any more. Never that of
// an agent that has just started: this holds a lock of the directory (flock),
// and so does an agent from before it replaces a dead socket until it listens.
//
// Best effort within a fifth of a second: whatever is in the way, the file
// stays for the next agent to replace. Thread-safe.
void RemoveDeadSocket(const std::string& path);

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_DEAD_SOCKET_H_
