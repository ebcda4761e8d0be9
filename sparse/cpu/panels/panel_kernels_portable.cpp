// Panels in plain C++, which the compiler turns into what the build's -march allows.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/base/dtype.h"
#include "sparse/cpu/panels/panel_kernels.h"

namespace sparsellm::panels {
namespace {

constexpr int kTileTokens = 4;

template <class T>
int row_of(int bit) {
  return std::is_same_v<T, BFloat16> ? kPairedRows[bit] : bit;
}

// Columns side by side, kRows values each; returns the end of the values.
template <class T>
const uint8_t* decode_group(const uint8_t* masks, int64_t columns, float* piece) {
  const uint8_t* values = masks + columns * 8;
  std::memset(piece, 0, sizeof(float) * static_cast<size_t>(columns * kRows));
  for (int64_t c = 0; c < columns; ++c) {
    uint64_t mask = 0;
    std::memcpy(&mask, masks + c * 8, sizeof(mask));
    for (; mask != 0; mask &= mask - 1) {
      T value;
      std::memcpy(&value, values, sizeof(value));
      values += sizeof(value);
      piece[c * kRows + row_of<T>(std::countr_zero(mask))] = to_float(value);
    }
  }
  return values;
}

template <int kTokens>
void multiply_piece(const float* piece, int64_t columns, const float* x, int64_t stride,
                    float* sums) {
  for (int64_t c = 0; c < columns; ++c) {
    const float* const w = piece + c * kRows;
    for (int t = 0; t < kTokens; ++t) {
      const float xt = x[c * stride + t];
      float* const to = sums + t * kRows;
      for (int r = 0; r < kRows; ++r) {
        to[r] = std::fma(w[r], xt, to[r]);
      }
    }
  }
}

template <class T>
void multiply(const uint8_t* panel, int64_t columns, const float* x, int64_t tokens, float* sums) {
  float piece[kGroupColumns * kRows];
  std::memset(sums, 0, sizeof(float) * static_cast<size_t>(tokens * kRows));
  for (int64_t first = 0; first < columns; first += kGroupColumns) {
    const int64_t count = std::min(columns - first, kGroupColumns);
    panel = decode_group<T>(panel, count, piece);
    const float* const at = x + first * tokens;
    int64_t t = 0;
    for (; t + kTileTokens <= tokens; t += kTileTokens) {
      multiply_piece<kTileTokens>(piece, count, at + t, tokens, sums + t * kRows);
    }
    for (; t < tokens; ++t) {
      multiply_piece<1>(piece, count, at + t, tokens, sums + t * kRows);
    }
  }
}

}  // namespace

const Kernels kPortableKernels = {.f16 = multiply<Half>, .bf16 = multiply<BFloat16>};

}  // namespace sparsellm::panels
