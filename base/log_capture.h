// What is logged as long as it lives, for tests: instead of going to stderr.
//
// Thread-safe.
#ifndef PACTRAIN_BASE_LOG_CAPTURE_H_
#define PACTRAIN_BASE_LOG_CAPTURE_H_

#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"

namespace pactrain::base {

class LogCapture {
 public:
  LogCapture()
      : before_(spdlog::default_logger()), sink_(std::make_shared<Sink>()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink_));
  }
  ~LogCapture() { spdlog::set_default_logger(before_); }

  std::string text() { return sink_->Text(); }
  bool Has(const std::string& what) { return Count(what) > 0; }
  int Count(const std::string& what) {
    const std::string all = text();
    int count = 0;
    for (size_t at = 0; (at = all.find(what, at)) != all.npos; ++at) ++count;
    return count;
  }
  // False: it did not come within 20 s.
  bool WaitFor(const std::string& what) {
    const absl::Duration end = MonotonicNow() + absl::Seconds(20);
    while (!Has(what)) {
      if (MonotonicNow() > end) return false;
    }
    return true;
  }

 private:
  class Sink : public spdlog::sinks::base_sink<std::mutex> {
   public:
    std::string Text() {
      const std::lock_guard<std::mutex> lock(mutex_);
      return text_;
    }

   private:
    void sink_it_(const spdlog::details::log_msg& message) override {
      text_.append(message.payload.data(), message.payload.size());
      text_ += '\n';
    }
    void flush_() override {}
    std::string text_;
  };

  const std::shared_ptr<spdlog::logger> before_;
  const std::shared_ptr<Sink> sink_;
};

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_LOG_CAPTURE_H_
