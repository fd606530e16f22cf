#include "protocol/keep_by_parameter.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "protocol/limits.h"

namespace pactrain::protocol {
namespace {

absl::Status CheckCounts(absl::string_view what, uint64_t kept,
                         uint64_t elements) {
  if (kept <= elements && elements <= kMaxElements) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " keeps ", kept, " of ", elements,
                   " elements; allowed is kept <= elements <= ", kMaxElements));
}

}  // namespace

absl::Status CheckKeep(absl::string_view what, const KeepByParameter& keep) {
  if (keep.mask_digest.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ".mask_digest is empty; name the mask set"));
  }
  if (keep.parameters.size() > kMaxKeepParameters) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ".parameters has ", keep.parameters.size(),
                     ", allowed are ", kMaxKeepParameters));
  }
  for (const KeepByParameter::Parameter& p : keep.parameters) {
    const bool printable =
        std::all_of(p.name.begin(), p.name.end(),
                    [](unsigned char c) { return absl::ascii_isprint(c); });
    if (p.name.empty() || p.name.size() > kMaxNameLength || !printable) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, ".parameters.name has ", p.name.size(), " bytes",
          printable ? "" : ", not all printable", "; allowed are 1 to ",
          kMaxNameLength, " of printable ASCII"));
    }
    RETURN_IF_ERROR(
        CheckCounts(absl::StrCat(what, " of ", p.name), p.kept, p.elements));
  }
  return CheckCounts(absl::StrCat(what, ".others"), keep.others_kept,
                     keep.others_elements);
}

}  // namespace pactrain::protocol
