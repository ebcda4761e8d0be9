#pragma once

#include <cstdint>

// Division by a number that the host knows: it passes the inverse, by which the kernel multiplies.
namespace sparsellm::tca_bme {

// 2^32 / divisor, 0 for 1.
inline uint32_t inverse_of(int64_t divisor) {
  return divisor < 2 ? 0 : static_cast<uint32_t>((int64_t{1} << 32) / divisor + 1);
}
// i / divisor: exact while i times the divisor is less than 2^32.
__device__ inline int quotient(int i, uint32_t inverse) {
  return inverse == 0 ? i : static_cast<int>(__umulhi(i, inverse));
}

}  // namespace sparsellm::tca_bme
