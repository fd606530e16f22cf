// Which agents can be dialled.
#ifndef PACTRAIN_PROTOCOL_REACH_H_
#define PACTRAIN_PROTOCOL_REACH_H_

#include "absl/strings/string_view.h"

namespace pactrain::protocol {

// An agent's data_address is "host:port" or this: nobody can dial it, so it
// dials all others.
inline constexpr absl::string_view kNobodyDials = "none";

}  // namespace pactrain::protocol

#endif  // PACTRAIN_PROTOCOL_REACH_H_
