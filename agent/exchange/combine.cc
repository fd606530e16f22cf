#include "agent/exchange/combine.h"

#include <cstdint>
#include <cstring>

#include "kernels/sum.h"

namespace pactrain::agent {
namespace {

// Through memcpy: the words are not floats, and no float may touch their bits.
void XorInto(float* out, const float* term, size_t elements) {
  for (size_t i = 0; i < elements; ++i) {
    uint32_t a, b;
    std::memcpy(&a, out + i, 4);
    std::memcpy(&b, term + i, 4);
    a ^= b;
    std::memcpy(out + i, &a, 4);
  }
}

}  // namespace

void Combine(protocol::Op op, absl::Span<const float* const> terms,
             size_t elements, float* out) {
  if (elements == 0) return;
  if (op == protocol::Op::kSum) {
    kernels::Sum(terms.data(), terms.size(), elements, out);
    return;
  }
  std::memcpy(out, terms[0], elements * 4);
  for (const float* term : terms.subspan(1)) XorInto(out, term, elements);
}

}  // namespace pactrain::agent
