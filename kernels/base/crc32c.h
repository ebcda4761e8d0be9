#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sparsellm {

// CRC-32C, the checksum with Castagnoli's polynomial (RFC 3720, appendix B.4). `so_far` is the
// checksum of the bytes in front of these: crc32c(b, crc32c(a)) is that of a and b joined.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t so_far = 0);

// The same where the machine has no instruction for it.
uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t so_far = 0);

}  // namespace sparsellm
