#include "config/reload.h"

#include <utility>

#include "absl/strings/str_join.h"
#include "base/log.h"
#include "config/load.h"

namespace pactrain::config {
namespace {

constexpr char kLogLevel[] = "log-level";

std::unique_ptr<Message> CopyOf(const Message& message) {
  std::unique_ptr<Message> copy(message.New());
  copy->CopyFrom(message);
  return copy;
}

// A task is done in the place of starting, so whoever runs has none.
Program WithoutTask(Program program) {
  program.task_file = nullptr;
  return program;
}

}  // namespace

Reload::Reload(Program program, int argc, const char* const* argv,
               const Message& defaults, const Message& running)
    : program_(WithoutTask(std::move(program))),
      words_(argv, argv + argc),
      defaults_(CopyOf(defaults)),
      running_(CopyOf(running)) {}

void Reload::operator()() const {
  std::vector<const char*> argv;
  for (const std::string& word : words_) argv.push_back(word.c_str());
  const std::unique_ptr<Message> now = CopyOf(*defaults_);
  const absl::Status read =
      LoadAgain(program_, static_cast<int>(argv.size()), argv.data(), *now);
  if (!read.ok()) {
    LOG_WARN("the settings have a mistake, those before stay: {}",
             std::string(read.message()));
    return;
  }
  std::vector<std::string> changed;
  for (const FieldDescriptor* field : FieldsOf(*now->GetDescriptor())) {
    const std::vector<std::string> texts = TextsOf(*field, *now);
    if (KeyOf(*field) == kLogLevel) {
      base::SetLogLevel(texts.front());
    } else if (texts != TextsOf(*field, *running_)) {
      changed.push_back(KeyOf(*field));
    }
  }
  if (changed.empty()) {
    LOG_INFO("the settings were read again, and are in force");
  } else {
    LOG_WARN("the settings were read again; a restart is needed for {}",
             absl::StrJoin(changed, ", "));
  }
}

}  // namespace pactrain::config
