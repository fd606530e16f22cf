// Process log: one event a line on stderr, with time, level and component.
// Whatever text an event quotes, it makes one line (OneLine()).
//
//   InitLog("agent", "info");
//   LOG_INFO("generation {} of job {} started", generation, job);
//
// Thread-safe. Only shells log; a core returns a `reason` instead.
#ifndef PACTRAIN_BASE_LOG_H_
#define PACTRAIN_BASE_LOG_H_

#include <string>

#include "spdlog/spdlog.h"

namespace pactrain::base {

// `level`: debug, info, warn or error; false for any other word.
bool InitLog(const std::string& component, const std::string& level);
// The same of a log that runs.
bool SetLogLevel(const std::string& level);

}  // namespace pactrain::base

#define LOG_DEBUG(...) ::spdlog::debug(__VA_ARGS__)
#define LOG_INFO(...) ::spdlog::info(__VA_ARGS__)
#define LOG_WARN(...) ::spdlog::warn(__VA_ARGS__)
#define LOG_ERROR(...) ::spdlog::error(__VA_ARGS__)

#endif  // PACTRAIN_BASE_LOG_H_
