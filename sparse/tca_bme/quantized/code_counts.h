#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sparse/tca_bme/quantized/quantized_layout.h"

namespace sparsellm::tca_bme {

// How many bytes have this value in the bits of the mask. All counts of a record fit 16 bits; no
// wider than that, they let the compiler vectorise the loop.
inline int32_t count_bytes(std::span<const std::byte> bytes, std::byte mask, std::byte value) {
  uint16_t count = 0;
  for (const std::byte byte : bytes) {
    count += (byte & mask) == value ? 1 : 0;
  }
  return count;
}

// Of the values of a dense record.
inline int32_t count_dense_nonzeros(const QuantizedLayout& layout,
                                    std::span<const std::byte> values) {
  const int32_t zeros = layout.nibbles() ? count_bytes(values, std::byte{0x0f}, std::byte{0x08}) +
                                               count_bytes(values, std::byte{0xf0}, std::byte{0x80})
                                         : count_bytes(values, std::byte{0xff}, std::byte{0});
  return kRecordRows * QuantizedLayout::kColumns - zeros;
}

}  // namespace sparsellm::tca_bme
