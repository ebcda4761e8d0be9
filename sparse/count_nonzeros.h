#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/base/dtype.h"
#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// Whether a value is 0 or -0; a NaN is not.
constexpr bool is_zero(Half value) { return (value.bits & 0x7fffu) == 0; }
constexpr bool is_zero(BFloat16 value) { return (value.bits & 0x7fffu) == 0; }
constexpr bool is_zero(float value) { return (std::bit_cast<uint32_t>(value) & 0x7fffffffu) == 0; }

// Bit i says whether values[i] is no zero; `count` is at most 64, the other bits are 0. In loops
// that compilers make vectors of: flags of a byte, then eight of them at a time to bits.
template <class T>
uint64_t nonzero_mask(const T* values, int64_t count) {
  constexpr int64_t kBits = 64;
  std::array<uint8_t, kBits> flags{};
  if (count == kBits) {
    for (size_t i = 0; i < flags.size(); ++i) {
      flags[i] = is_zero(values[i]) ? 0 : 1;
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      flags[static_cast<size_t>(i)] = is_zero(values[i]) ? 0 : 1;
    }
  }
  uint64_t mask = 0;
  for (size_t byte = 0; byte < sizeof mask; ++byte) {
    uint64_t eight = 0;
    std::memcpy(&eight, flags.data() + 8 * byte, sizeof eight);
    mask |= (eight * 0x0102040810204080u >> 56) << (8 * byte);
  }
  return mask;
}

// Elements of a floating matrix in host memory that are neither 0 nor -0; a NaN is one.
int64_t count_nonzeros(const Tensor& w, ThreadPool& threads);

}  // namespace sparsellm
