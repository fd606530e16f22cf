// The files of the page, as they lie in assets/; made by embed.py.
#ifndef PACTRAIN_COORDINATOR_PAGE_ASSETS_H_
#define PACTRAIN_COORDINATOR_PAGE_ASSETS_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace pactrain::coordinator {

struct Asset {
  absl::string_view path;  // "/index.html"
  absl::string_view type;
  absl::string_view body;
};

absl::Span<const Asset> Assets();

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_PAGE_ASSETS_H_
