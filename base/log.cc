#include "base/log.h"

#include "spdlog/sinks/stdout_sinks.h"

namespace pactrain::base {

bool InitLog(const std::string& component, const std::string& level) {
  const spdlog::level::level_enum parsed = spdlog::level::from_str(level);
  // from_str answers "off" for what it does not know.
  if (parsed == spdlog::level::off) return false;
  auto logger = std::make_shared<spdlog::logger>(
      component, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::debug);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %n: %v");
  spdlog::set_default_logger(std::move(logger));
  return true;
}

}  // namespace pactrain::base
