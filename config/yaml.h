// Reads settings from YAML: one map from keys to values, nothing nested.
#ifndef PACTRAIN_CONFIG_YAML_H_
#define PACTRAIN_CONFIG_YAML_H_

#include <string>

#include "absl/status/status.h"
#include "config/settings.h"

namespace pactrain::config {

// Assigns what the `contents` of the file called `name` say. Lists are YAML
// lists or, as in flags, words with commas. Some may be assigned before an
// error. InvalidArgument: begins with file and line. It is no YAML, more than
// one
//                  document or no map; a key is unknown or there twice; a value
//                  is missing, nested or of another type.
absl::Status ReadYaml(const std::string& contents, const std::string& name,
                      Settings& settings);

}  // namespace pactrain::config

#endif  // PACTRAIN_CONFIG_YAML_H_
