// Checks of single wire fields, shared by the proto_*.cc files. Every error is
// InvalidArgument and names the field, what came and what is allowed.
#ifndef PACTRAIN_PROTOCOL_PROTO_CHECK_H_
#define PACTRAIN_PROTOCOL_PROTO_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/secret.h"
#include "protocol/types.h"

namespace pactrain::protocol {

inline constexpr size_t kMaxAddressLength = 255;
inline constexpr size_t kMaxSummaryLength = 255;
inline constexpr size_t kMaxReasonLength = 255;  // Of a decision.

absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t low,
                        uint64_t high);
absl::Status CheckLength(absl::string_view field, absl::string_view text,
                         size_t limit);
// Far above any real step, and far enough from the end to count on.
absl::Status CheckStep(absl::string_view field, uint64_t step);
// Finite and not negative.
absl::Status CheckMeasure(absl::string_view field, double value);

// 16 bytes; `required`: not all zero, else no bytes at all mean "none".
absl::StatusOr<Digest> ReadDigest(absl::string_view field,
                                  absl::string_view bytes, bool required);
// 16 bytes; none for an empty digest.
std::string WriteDigest(const Digest& digest);

// 32 bytes, not all zero; an error never quotes them.
absl::StatusOr<base::Secret> ReadSecret(absl::string_view field,
                                        absl::string_view bytes);

// At most `limit` bytes of valid UTF-8, which proto3 insists on: cut between
// characters, and a byte that is not UTF-8 becomes '?'.
std::string WriteText(absl::string_view text, size_t limit);

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_PROTO_CHECK_H_
