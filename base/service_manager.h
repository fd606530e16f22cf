// What systemd is told of a daemon whose unit says Type=notify (sd_notify).
//
// Thread-safe; without a service manager nothing happens.
#ifndef PACTRAIN_BASE_SERVICE_MANAGER_H_
#define PACTRAIN_BASE_SERVICE_MANAGER_H_

#include <chrono>
#include <optional>
#include <string>

namespace pactrain::base {

// Tells the socket in NOTIFY_SOCKET, without waiting: "READY=1", "STOPPING=1"
// or "WATCHDOG=1". False: there is one, and it could not be told.
bool TellServiceManager(const std::string& state);

// How often to say "WATCHDOG=1": half of what the unit's WatchdogSec allows.
// None: nobody watches this process.
std::optional<std::chrono::microseconds> WatchdogPeriod();

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_SERVICE_MANAGER_H_
