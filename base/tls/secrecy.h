// Keeps this process's keys from others of its own user: trainers on an agent's
// node, say.
#ifndef PACTRAIN_BASE_TLS_SECRECY_H_
#define PACTRAIN_BASE_TLS_SECRECY_H_

#include <string>

namespace pactrain::base {

// To be called first: from then on no process of this user can look at this
// one's memory, environment and descriptors or trace it (root can), it leaves
// no core, and OpenSSL keeps private keys in memory of their own, which is in
// no dump. Empty: done; else what the system refuses, for the log, which is not
// open yet.
std::string HideSecrets();

// Overwrites the value of PACTRAIN_JOB_KEY, which was read, where the system
// shows the environment, and unsets it. REQUIRES: no other thread reads the
// environment.
void ForgetJobKeyVariable();

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_SECRECY_H_
