// Variables that look like a daemon's settings and are none: misspelt ones, and
// those that Kubernetes makes for services.
//
// Pure. Thread-safe.
#ifndef PACTRAIN_CONFIG_ENVIRONMENT_H_
#define PACTRAIN_CONFIG_ENVIRONMENT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "config/field.h"

namespace pactrain::config {

// Whether Kubernetes makes it for a service whose name begins like `prefix`:
// PACTRAIN_AGENT_PORT=tcp://10.0.0.1:7072, PACTRAIN_AGENT_SERVICE_HOST. A port
// that somebody set by hand is none of these.
bool IsOfKubernetes(absl::string_view prefix, const std::string& name,
                    absl::string_view value);

// `environment` ends with a null, as environ does.
// InvalidArgument: a variable `prefix`_... that is not empty names no setting;
// says which may have been meant.
absl::Status CheckNames(absl::string_view prefix, const Descriptor& settings,
                        const char* const* environment);

}  // namespace pactrain::config

#endif  // PACTRAIN_CONFIG_ENVIRONMENT_H_
