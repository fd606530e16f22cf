// The secret that a reader of the page shows, where one is asked for.
#ifndef PACTRAIN_COORDINATOR_PAGE_READER_TOKEN_H_
#define PACTRAIN_COORDINATOR_PAGE_READER_TOKEN_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pactrain::coordinator {

// The one line of the file, without its end.
//   InvalidArgument:  cannot be read, or is no token (16 to 256 printable
//                     characters without blanks); says what to do.
//   PermissionDenied: others may read the file.
absl::StatusOr<std::string> ReadToken(const std::string& path);

// Does an Authorization header show `token`? As "Bearer TOKEN", or as the
// password of "Basic", for which browsers ask; whatever the user is.
bool ShowsToken(absl::string_view header, absl::string_view token);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_PAGE_READER_TOKEN_H_
