// What the files of the C ABI share: conversions, and nothing thrown into C.
#ifndef PACTRAIN_TRAINER_ABI_H_
#define PACTRAIN_TRAINER_ABI_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "trainer/pactrain.h"
#include "trainer/session.h"

struct pt_session {
  std::unique_ptr<pactrain::trainer::Session> impl;
};

namespace pactrain::trainer {

// What pt_last_error() says to this thread.
void SetLastError(const std::string& text);

inline wire::Digest128 ToWire(const pt_digest& digest) {
  return {digest.hi, digest.lo};
}

inline pt_digest FromWire(const wire::Digest128& digest) {
  return {digest.hi, digest.lo};
}

// Values out of range are told from each other by Session, not cut to a byte.
inline uint8_t ToByte(int value) {
  return static_cast<uint8_t>(std::clamp(value, 0, 255));
}

template <typename Call>
Error Guarded(Call call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return {.code = wire::Code::kInternal,
            .text = "out of memory.\nGive this process more memory."};
  }
}

template <typename Call>
int Run(pt_session* session, Call call) {
  if (session == nullptr) return PT_INVALID_ARGUMENT;
  const Error error = Guarded(call);
  if (!error.ok()) session->impl->SetErrorText(error.text);
  return static_cast<int>(error.code);
}

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_ABI_H_
