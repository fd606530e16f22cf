// The settings of a daemon and where each value came from.
//
// Sources are read in rising priority; a later value replaces an earlier one,
// lists too. Thread-compatible.
#ifndef PACTRAIN_CONFIG_SETTINGS_H_
#define PACTRAIN_CONFIG_SETTINGS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "config/field.h"

namespace pactrain::config {

class Settings {
 public:
  struct Origin {
    std::string note;   // For a comment: "default", "/etc/agent.yaml:7".
    std::string where;  // Before an error: "/etc/agent.yaml:7: listen-metrics".
  };

  // `values` holds the defaults and must outlive this.
  explicit Settings(Message& values) : values_(values) {}

  // Replaces the value of `field` by what `texts` say: one text, or any number
  // for a list.
  // InvalidArgument: begins with `origin.where`; what came; what is allowed.
  absl::Status Assign(const FieldDescriptor& field,
                      const std::vector<std::string>& texts, Origin origin);

  // What a message about the setting `key` begins with: where its value came
  // from. REQUIRES: there is such a setting.
  std::string Where(absl::string_view key) const;
  // `status` with Where(key) before its message, if it is an error.
  absl::Status At(absl::string_view key, const absl::Status& status) const;

  // The settings as a YAML file that gives them again, each line with a comment
  // that says where its value came from. A setting without a value is a comment
  // itself.
  std::string ToYaml() const;

  const Message& values() const { return values_; }

 private:
  Message& values_;
  std::map<int, Origin> origins_;  // By field number; none: the default.
};

}  // namespace pactrain::config

#endif  // PACTRAIN_CONFIG_SETTINGS_H_
