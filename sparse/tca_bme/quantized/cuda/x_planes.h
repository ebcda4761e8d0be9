#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/exec.h"
#include "sparse/tca_bme/format/record_layout.h"

// x for products of warpgroups in integers: rounded to 16 bits of the largest magnitude of each
// block of columns, as a plane of high bytes and one of low bytes.
namespace sparsellm::tca_bme {

inline constexpr int kPlanes = 2;
inline constexpr int kPlaneBlock = 512;  // columns that share a scale
inline constexpr int kByteWgmmaTiles[] = {16, 32, 64};
// From here on warpgroups may be worth the smallest of them.
inline constexpr int64_t kMinPlaneTokens = 9;

// Consumer warpgroups of a block for tiles of this many tokens, whose sums take twice the registers
// of those of 16-bit values. Three for 64 were slower than two.
constexpr int byte_consumers_for(int token_tile) { return token_tile <= 32 ? 4 : 2; }

// Whether the totals of a tile are in shared memory, not in registers.
constexpr bool has_shared_totals(int token_tile) { return token_tile <= 32; }

// Of `tokens` rows in tiles of `tile`:
//   planes  u8 [tiles, 2 * tile, stride]: a tile's rows are for each 8 tokens those of the even
//           ones, and after them of the odd ones, of each the high and then the low bytes
//   scales  f32 [tiles, blocks, tile]
struct XPlanes {
  int64_t tiles = 0;
  int64_t stride = 0;  // bytes of a row, a multiple of 128
  int64_t blocks = 0;
  int tile = 0;
  uint8_t* planes = nullptr;
  float* scales = nullptr;

  int64_t rows() const { return tiles * kPlanes * tile; }
  int64_t plane_bytes() const { return rows() * stride; }
  int64_t bytes() const { return plane_bytes() + tiles * blocks * tile * int64_t{sizeof(float)}; }
};
constexpr XPlanes x_planes_for(int64_t tokens, int64_t columns, int tile) {
  constexpr int64_t kRowAlignment = 128;
  return {.tiles = ceil_div(tokens, int64_t{tile}),
          .stride = ceil_div(columns, kRowAlignment) * kRowAlignment,
          .blocks = ceil_div(columns, int64_t{kPlaneBlock}),
          .tile = tile};
}

struct XRows {
  const void* data = nullptr;
  int64_t stride = 0;  // elements
  int64_t tokens = 0;
  int64_t columns = 0;
  DType dtype = DType::f16;  // or bf16
};
// Fills planes and scales, of which what belongs to no token stays as it is. Enqueues one launch.
void make_x_planes(const XRows& x, const XPlanes& planes, const ExecContext& ctx);

}  // namespace sparsellm::tca_bme
