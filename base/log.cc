#include "base/log.h"

#include <memory>
#include <utility>

#include "base/one_line.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace pactrain::base {
namespace {

class OneLineText : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string line =
        OneLine({message.payload.data(), message.payload.size()});
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<OneLineText>();
  }
};

}  // namespace

bool SetLogLevel(const std::string& level) {
  const spdlog::level::level_enum parsed = spdlog::level::from_str(level);
  // from_str answers "off" for what it does not know.
  if (parsed == spdlog::level::off) return false;
  spdlog::default_logger_raw()->set_level(parsed);
  return true;
}

bool InitLog(const std::string& component, const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>(
      component, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->flush_on(spdlog::level::debug);
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<OneLineText>('*').set_pattern(
      "%Y-%m-%dT%H:%M:%S.%e %L %n: %*");
  logger->set_formatter(std::move(formatter));
  spdlog::set_default_logger(std::move(logger));
  return SetLogLevel(level);
}

}  // namespace pactrain::base
