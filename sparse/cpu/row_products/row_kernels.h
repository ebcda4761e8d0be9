#pragma once

#include <cstdint>

// The kernels of products from compressed rows (sparse/cpu/compressed_rows_weight.h). As those of
// panels: their files are compiled for instruction sets that not every CPU has, so this header has
// no inline functions, and neither do those that the files include besides it.
namespace sparsellm::row_products {

inline constexpr int kBlockRows = 64;
inline constexpr int kTokensAtOnce = 64;
// Floats that are read, but not used, after the last token of the last column.
inline constexpr int kPadding = 15;

// Some consecutive rows of a matrix.
struct RowBlock {
  const uint32_t* columns;  // of all nonzeros of the matrix, ascending in a row
  const void* values;       // likewise
  const int64_t* starts;    // [count + 1], of these rows
  const uint8_t* order;     // [count], of the rows in the block: the shortest first
  int count;                // at most kBlockRows
};

// The first `tokens` (1 to kTokensAtOnce) in x f32 [columns][stride]. If the stride is 1, there is
// no padding.
struct TokenColumns {
  const float* x;
  int64_t stride;
  int64_t tokens;
};

// sums f32 [tokens][kBlockRows] = the rows of the block times x. A sum is one chain of fused
// multiply-adds over the nonzeros of the row in their order, from 0 on: the same bits by every
// kernel and with any number of tokens. An infinity or a NaN in x reaches the rows that have a
// nonzero there.
using Multiply = void (*)(const RowBlock& block, const TokenColumns& x, float* sums);

struct Kernels {
  Multiply f16;
  Multiply bf16;
  Multiply f32;
};

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;  // F, BW, DQ and VL

}  // namespace sparsellm::row_products
