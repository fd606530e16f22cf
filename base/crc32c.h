// CRC32C (Castagnoli) of a byte range, as RFC 3720 defines it: detects damage
// on the wire, not tampering.
#ifndef PACTRAIN_BASE_CRC32C_H_
#define PACTRAIN_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace pactrain::base {

uint32_t Crc32c(const void* data, size_t bytes);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_CRC32C_H_
