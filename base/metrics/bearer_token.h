// What a reader of /metrics or of the page shows: the one line of a file.
#ifndef PACTRAIN_BASE_METRICS_BEARER_TOKEN_H_
#define PACTRAIN_BASE_METRICS_BEARER_TOKEN_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pactrain::base {

inline constexpr size_t kMinTokenBytes = 16;
inline constexpr size_t kMaxTokenBytes = 1024;

// Begins with `name`, the setting. InvalidArgument: the file cannot be read, is
// open to others, or holds anything but one word of that many bytes.
absl::StatusOr<std::string> ReadToken(const std::string& name,
                                      const std::string& file);

// OK: `authorization`, a header's value ("Bearer ..."; null: none), shows what
// is in the file now. PermissionDenied: says why not, without any secret.
absl::Status CheckBearer(const std::string& file, const char* authorization);

// The same for a browser, which asks its user for a password: "Basic ..." of
// any user with the token as the password is fine, too.
absl::Status CheckBearerOrPassword(const std::string& file,
                                   const char* authorization);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_METRICS_BEARER_TOKEN_H_
