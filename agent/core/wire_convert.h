// Between the words of protocol/ and the fixed structs of trainer/wire.h.
//
// Pure functions. Texts that are too long are cut.
#ifndef PACTRAIN_AGENT_CORE_WIRE_CONVERT_H_
#define PACTRAIN_AGENT_CORE_WIRE_CONVERT_H_

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/secret.h"
#include "protocol/types.h"
#include "trainer/wire.h"

namespace pactrain::agent {

inline protocol::Digest FromWire(const wire::Digest128& d) {
  return {d.hi, d.lo};
}
inline wire::Digest128 ToWire(const protocol::Digest& d) {
  return {d.hi, d.lo};
}
wire::Decision ToWire(const protocol::Decision& decision);

template <size_t N>
void SetText(absl::string_view text, char (&out)[N]) {
  const size_t size = text.size() < N ? text.size() : N - 1;
  std::memcpy(out, text.data(), size);
  std::memset(out + size, 0, N - size);
}

// Up to the NUL, or the whole array.
template <size_t N>
std::string GetText(const char (&text)[N]) {
  return std::string(text, strnlen(text, N));
}

// A zeroed message of its kind and size.
template <typename T>
T MakeMessage(wire::Kind kind) {
  T message = {};
  message.header = {kind, sizeof(T)};
  return message;
}

wire::Waiting MakeWaiting(absl::string_view text);

inline constexpr uint64_t kNoStep = ~uint64_t{0};  // Not about a step.
wire::Failed MakeFailed(uint64_t step, wire::Code code, bool final,
                        absl::string_view text);

// Who a Hello says its sender is.
struct HelloFields {
  protocol::GroupId group;
  protocol::Trainer trainer;
  std::string site;  // Empty: the agent's.
  uint64_t slot_bytes = 0;
  base::Secret seat;  // Its trainer's last one; empty: none.
};
// InvalidArgument: a field is malformed or over a limit.
absl::StatusOr<HelloFields> ParseHello(const wire::Hello& hello);

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_WIRE_CONVERT_H_
