#pragma once

#include <cstdint>

#include "sparse/tca_bme/quantized/cuda/dense_tile.cuh"
#include "sparse/tca_bme/quantized/cuda/nibble_scales.cuh"

// As quantized_tile.cuh, for a warp that has tile `tile` of 16 rows of a record alone, in every
// second chunk: one 1-bit product has all that the tile needs of a chunk. A quarter of a record is
// its next 32 columns.
namespace sparsellm::tca_bme {

// Where the masks of the tile are in a record, and its bits in those of a unit's k.
struct TileMasks {
  uint32_t masks_at;
  uint32_t shift;

  __device__ TileMasks(int lane, int tile)
      : masks_at((lane >> 3) * (2 * kMaskWords * 2) + (lane & 7) * 16 +
                 tile / 2 * (kMaskWords * 2)),
        shift(tile % 2 * 2) {}
  // Those of each quarter of the record at `base`.
  __device__ void load(uint32_t (&turned)[4], uint32_t (&own)[4], uint32_t base) const {
    load_transposed(turned, base + masks_at);
    load_matrices(own, base + masks_at);
  }
};

// OFFSETS: of a chunk, 0 of a dense record.
template <int OFFSETS>
struct ByteTileDecoder : TileMasks {
  static_assert(OFFSETS == 16 || OFFSETS == 8);
  static constexpr int kWordBytes = 4;

  uint32_t offsets_at;
  uint32_t before[2];  // masks of that product: row 8 h + g has the bits before unit h of row g

  __device__ ByteTileDecoder(int lane, int tile, int /*group*/)
      : TileMasks(lane, tile),
        offsets_at(QuantizedLayout{.offsets = OFFSETS}.mask_bytes() + (lane & 3) * 16 +
                   tile / 2 * (OFFSETS / 2) + (OFFSETS == 16 ? tile % 2 * kWordBytes : 0)) {
    const int g = lane >> 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      before[h] = 0;
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const bool above = 2 * (lane & 3) + x < g;
        const uint32_t first = 0x1111u << shift;  // units h = 0; those of h = 1 beside
        uint32_t bits = h == 0 ? (above ? first : 0u) : first | (above ? 2 * first : 0u);
        if (OFFSETS == 8 && shift != 0) {  // an offset is that of tile 0
          bits |= 0x3333u;
        }
        before[h] |= bits << (16 * x);
      }
    }
    asm volatile("" : "+r"(masks_at), "+r"(offsets_at), "+r"(shift));
  }

  // at[2 h + q] = where the values of unit (q, h) of a quarter begin.
  __device__ void locate(uint32_t (&at)[4], uint32_t base, int quarter, uint32_t turned) const {
    constexpr int kChunksOfOffsets = 32 / OFFSETS;  // whose offsets lie beside each other
    const int c = 2 * quarter;                      // or the one after it
    const uint32_t offsets = load_word<0>(base + offsets_at + c / kChunksOfOffsets * 64 +
                                          c % kChunksOfOffsets * (OFFSETS / 2));
    const uint32_t low = dot2(offsets, 0x0001u, base);
    const uint32_t high = dot2(offsets, 0x0100u, base);
    const uint32_t from[4] = {low, high, low, high};
    bit_mma(at, before, turned, from);
  }
};
template <>
struct ByteTileDecoder<0> {
  uint32_t offsets_at;  // of the lane's values

  __device__ ByteTileDecoder(int lane, int tile, int /*group*/)
      : offsets_at(tile * kTileValueBytes + lane * 16) {}
};

template <int OFFSETS>
struct NibbleTileDecoder : TileMasks {
  static_assert(OFFSETS == 8);

  uint32_t offsets_at;
  NibbleScales<OFFSETS> scales;
  uint32_t before[2];  // row g has the bits before the units of row g, row 8 + g those of its first

  __device__ NibbleTileDecoder(int lane, int tile, int group)
      : TileMasks(lane, tile),
        offsets_at(QuantizedLayout{.offsets = OFFSETS}.mask_bytes() + (lane & 3) * 16 +
                   tile / 2 * (OFFSETS / 2)),
        scales(lane, group, tile) {
    const int g = lane >> 2;
    before[0] = before[1] = 0;
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int row = 2 * (lane & 3) + x;
      const uint32_t units = row < g ? 0x3333u << shift : 0u;
      const uint32_t of_tile0 = shift != 0 ? 0x3333u : 0u;  // an offset is that of tile 0
      before[0] |= (of_tile0 | units) << (16 * x);
      before[1] |= (row == g ? 0x1111u << shift : 0u) << (16 * x);
    }
    asm volatile("" : "+r"(masks_at), "+r"(offsets_at), "+r"(shift));
  }

  // at[q] = the nibble of shared memory at which the values of units (q, 0) and (q, 1) of a quarter
  // begin, at[2 + q] = how many of them are those of the first unit.
  __device__ void locate(uint32_t (&at)[4], uint32_t base, int quarter, uint32_t turned) const {
    constexpr int kChunksOfOffsets = 32 / OFFSETS;
    const int c = 2 * quarter;
    const uint32_t offsets = load_word<0>(base + offsets_at + c / kChunksOfOffsets * 64 +
                                          c % kChunksOfOffsets * (OFFSETS / 2));
    const uint32_t low = dot2(offsets, 0x0001u, 2 * base);
    const uint32_t high = dot2(offsets, 0x0100u, 2 * base);
    const uint32_t from[4] = {low, high, 0, 0};
    bit_mma(at, before, turned, from);
  }
};
template <>
struct NibbleTileDecoder<0> {
  uint32_t offsets_at;  // of the lane's values
  NibbleScales<0> scales;

  __device__ NibbleTileDecoder(int lane, int tile, int group)
      : offsets_at(
            QuantizedLayout{.values = QuantizedLayout::Values::i4, .offsets = 0, .group = group}
                .header_bytes() +
            tile * kTileValueBytes + lane * 16),
        scales(lane, group, tile) {}
};

}  // namespace sparsellm::tca_bme
