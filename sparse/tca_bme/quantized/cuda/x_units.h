#pragma once

#include <cstdint>

#include "sparse/tca_bme/format/record_layout.h"
#include "sparse/tca_bme/quantized/cuda/x_planes.h"

// x for products of warpgroups with narrow values that become 16 bits wide. Of each 16 columns, a
// lane has four neighbouring ones, and their product takes from it columns 2 t, 2 t + 1, 2 t + 8
// and 2 t + 9.
namespace sparsellm::tca_bme {

// Tokens of the largest tile; i8, which has products in integers for those of fewer, takes it
// alone.
inline constexpr int kLargeUnitTile = 128;

// For more tokens an expanded weight is faster, and this copy of x would take much memory.
inline constexpr int64_t kMaxUnitTokens = 1024;

// [tokens, stride]: of each 16 columns, pair i of neighbours is at i / 2 if i is even, else at
// i / 2 + 4. Columns that x does not have are zeros.
struct XUnits {
  int64_t stride = 0;  // elements, a multiple of the columns of a record
  void* data = nullptr;
};
constexpr int64_t x_units_stride(int64_t columns) {
  constexpr int64_t kRecordColumns = 128;
  return ceil_div(columns, kRecordColumns) * kRecordColumns;
}
constexpr int64_t x_units_bytes(int64_t tokens, int64_t columns) {
  return tokens * x_units_stride(columns) * 2;
}
// Fills x.tokens rows of it. Enqueues one launch.
void make_x_units(const XRows& x, const XUnits& units, const ExecContext& ctx);

}  // namespace sparsellm::tca_bme
