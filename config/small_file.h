// Reads a file that must be small.
#ifndef PACTRAIN_CONFIG_SMALL_FILE_H_
#define PACTRAIN_CONFIG_SMALL_FILE_H_

#include <string>

#include "absl/status/statusor.h"

namespace pactrain::config {

inline constexpr size_t kMaxFileBytes = 1 << 20;

// NotFound, PermissionDenied, ...: as errno says of a file that cannot be read.
// InvalidArgument: it is not a regular file, or larger than kMaxFileBytes.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);
// The same of a file that says who may do what. PermissionDenied: others may
// write it, or put another one in its place, as base::WhyNotGuarded() says.
absl::StatusOr<std::string> ReadGuardedFile(const std::string& path);

}  // namespace pactrain::config

#endif  // PACTRAIN_CONFIG_SMALL_FILE_H_
