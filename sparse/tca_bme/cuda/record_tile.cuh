#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/device/mma.cuh"

// The product of one record (sparse/tca_bme/format/record_layout.h) by a warp. Where in the record
// the values of a lane are comes from the tensor cores: a 1-bit product (mma.m16n8k128, AND and
// POPC) of the bitmaps with constant masks that select the bits before an element gives the number
// of values before it, twice over for 2 bytes each, on top of the offset of its group. GPUs that
// have no 1-bit products any more (from compute capability 10.0 on they are emulated, at four byte
// products each) spread the bits to bytes and take a byte product (mma.m16n8k32) instead.
namespace sparsellm::tca_bme {

__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a)
               : "memory");
}
__device__ inline void load_transposed(uint32_t (&r)[4], uint32_t a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a)
               : "memory");
}
__device__ inline void load_2_matrices(uint32_t (&r)[4], uint32_t a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(a)
               : "memory");
}
__device__ inline void load_2_transposed(uint32_t (&r)[4], uint32_t a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(a)
               : "memory");
}
__device__ inline uint4 load_shared4(uint32_t a) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(a)
               : "memory");
  return v;
}
template <int OFFSET>
__device__ inline uint32_t load_half(uint32_t a) {
  uint32_t v;
  asm volatile("ld.shared.u16 %0, [%1+%2];" : "=r"(v) : "r"(a), "n"(OFFSET) : "memory");
  return v;
}
// The 4 bytes at a where bit BIT of w is set, else 0.
template <int BIT>
__device__ inline uint32_t load_pair(uint32_t w, uint32_t a) {
  uint32_t v;
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 x;\nand.b32 x, %1, %3;\nsetp.ne.u32 p, x, 0;\n"
      "mov.b32 %0, 0;\n@p ld.shared.u32 %0, [%2];\n}"
      : "=&r"(v)
      : "r"(w), "r"(a), "n"(1u << BIT)
      : "memory");
  return v;
}
__device__ inline uint32_t permute(uint32_t a, uint32_t b, uint32_t s) {
  uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(s));
  return d;
}
// c + lo16(a) * s8(b.byte0) + hi16(a) * s8(b.byte1)
__device__ inline uint32_t dot2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("dp2a.lo.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// d = c + popc(a & b), a 16 x 128 bits, b 128 x 8 bits.
__device__ inline void bit_mma(uint32_t (&d)[4], const uint32_t (&a)[2], uint32_t b,
                               const uint32_t (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc "
      "{%0,%1,%2,%3},{%4,%5},{%6},{%7,%8,%9,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// d = c + a * b, a 16 x 32 bytes, b 32 x 8 bytes.
__device__ inline void byte_mma(uint32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                const uint32_t (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
}

// d = a * b, a 16 x 16 bytes, all rows of `a` the same, b 16 x 8 bytes.
__device__ inline void byte_mma(uint32_t (&d)[4], uint32_t a, uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.s32.u8.u8.s32 "
      "{%0,%1,%2,%3},{%4,%4},{%5},{%6,%6,%6,%6};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a), "r"(b), "r"(0));
}

// The pairs of a lane whose second values are at d, with zeros where a bit of w is missing.
__device__ inline void select_values(uint32_t (&a)[4], uint32_t w, const uint32_t (&d)[4]) {
  const uint32_t z0 = w & 0x01010101u;
  const uint32_t z1 = w & 0x02020202u;
  // A u16 load leaves bytes 2 and 3 zero: the selector takes those where a bit is missing.
  a[0] =
      permute(load_half<-2>(d[0]), load_half<0>(d[0]), z0 * static_cast<uint32_t>(-0x22) + 0x7632u);
  a[1] = permute(load_half<-2>(d[1]), load_half<0>(d[1]), dot2(z0, 0xDE00u, 0x7632u));
  a[2] =
      permute(load_half<-2>(d[2]), load_half<0>(d[2]), z1 * static_cast<uint32_t>(-0x11) + 0x7632u);
  a[3] = permute(load_half<-2>(d[3]), load_half<0>(d[3]), dot2(z1, 0xEF00u, 0x7632u));
}

// Row h * 8 + g of the constant operands of the 1-bit product selects, in its own m tile, the bits
// that come before the second element of a pair (single) or before the pair (pair format).
template <bool PAIR>
__device__ inline void before_masks(uint32_t (&am)[2][2], int g, int t) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t m0 = 0;
    uint32_t m1 = 0;
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int gk = 2 * t + x;
      if constexpr (PAIR) {
        const uint32_t q = gk < g;
        m0 |= (q << (2 * h)) << (16 * x);
        m1 |= ((1u << (2 * h)) | (q << (2 * h + 1))) << (16 * x);
      } else {
        const uint32_t q = gk < g ? 0x101u : gk == g ? 0x001u : 0u;
        m0 |= (q << (2 * h)) << (16 * x);
        m1 |= ((0x101u << (2 * h)) | (q << (2 * h + 1))) << (16 * x);
      }
    }
    if constexpr (PAIR) {
      am[0][h] = m0 * 0x1111u;
      am[1][h] = m1 * 0x1111u;
    } else {
      am[0][h] = m0 | m0 << 4;
      am[1][h] = m1 | m1 << 4;
    }
    asm volatile("" : "+r"(am[0][h]), "+r"(am[1][h]));
  }
}

// Where the values of a lane in a chunk are, by 1-bit products. at[I], of tile I: the addresses of
// the second values of its four pairs (of the pairs, if the record has bits for those), in the
// order of the registers of mma.m16n8k16. `offsets`: of the lane's groups; `turned` as in
// decode_chunk().
template <bool PAIR>
struct BitCounter {
  uint32_t before[2][2];

  __device__ explicit BitCounter(int lane) { before_masks<PAIR>(before, lane >> 2, lane & 3); }

  __device__ void locate(uint32_t (&at)[4][4], uint32_t base, const uint4& offsets,
                         uint32_t turned) const {
    const uint32_t x0 = PAIR ? (turned & 0x000f000fu) * 0x1111u
                             : (turned & 0x0f0f0f0fu) | ((turned << 4) & 0xf0f0f0f0u);
    const uint32_t x1 = PAIR ? ((turned >> 4) & 0x000f000fu) * 0x1111u
                             : (turned & 0xf0f0f0f0u) | ((turned >> 4) & 0x0f0f0f0fu);
    count(at[0], at[1], base, offsets.x, offsets.y, x0);
    count(at[2], at[3], base, offsets.z, offsets.w, x1);
  }

 private:
  __device__ void count(uint32_t (&even)[4], uint32_t (&odd)[4], uint32_t base, uint32_t of_even,
                        uint32_t of_odd, uint32_t bits) const {
    const uint32_t c[4] = {dot2(of_even, 0x0001u, base), dot2(of_even, 0x0100u, base),
                           dot2(of_odd, 0x0001u, base), dot2(of_odd, 0x0100u, base)};
    uint32_t d[2][4];
    bit_mma(d[0], before[0], bits, c);
    bit_mma(d[1], before[1], bits, c);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      even[i] = d[i / 2][i % 2];
      odd[i] = d[i / 2][2 + i % 2];
    }
  }
};

// The same by byte products, one for each tile: of the 32 bytes of a column pair, which are 0 or 1,
// 16 are of the upper and 16 of the lower 8 columns; row g of the constant operand counts what is
// before a value of the upper ones, row 8 + g of the lower ones.
template <bool PAIR>
struct ByteCounter {
  uint32_t before = 0;  // of those that a lane has of 16 bytes: 2 or, of a pair, 4 bytes each

  __device__ explicit ByteCounter(int lane) {
    const int g = lane >> 2;
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int gk = 2 * (lane & 3) + x;
      const uint32_t counted = PAIR ? (gk < g ? 4u : 0u) : gk < g ? 0x202u : gk == g ? 2u : 0u;
      before |= counted << (16 * x);
    }
    asm volatile("" : "+r"(before));
  }

  __device__ void locate(uint32_t (&at)[4][4], uint32_t base, const uint4& offsets,
                         uint32_t turned) const {
    constexpr uint32_t kBits = PAIR ? 0x00010001u : 0x01010101u;
    constexpr uint32_t kAll = PAIR ? 0x04040404u : 0x02020202u;
    const uint32_t a[4] = {before, kAll, 0, before};
    const uint32_t of_tiles[4] = {offsets.x, offsets.y, offsets.z, offsets.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t b[2] = {(turned >> (2 * i)) & kBits, (turned >> (2 * i + 1)) & kBits};
      const uint32_t first = dot2(of_tiles[i], 0x0001u, base);
      const uint32_t second = dot2(of_tiles[i], 0x0100u, base);
      const uint32_t c[4] = {first, second, first, second};
      byte_mma(at[i], a, b, c);
    }
  }
};

// What a lane keeps for the records of a matrix. COUNTER: BitCounter or ByteCounter.
template <int CH, bool PAIR, template <bool> class COUNTER = BitCounter>
struct RecordDecoder {
  uint32_t lane16, offsets_at;
  COUNTER<PAIR> counter;

  __device__ explicit RecordDecoder(int lane)
      : lane16(lane * 16), offsets_at(CH * (PAIR ? 64 : 128) + (lane & 3) * 16), counter(lane) {
    asm volatile("" : "+r"(lane16), "+r"(offsets_at));
  }
};

// Where in x, rows pitch bytes apart, a lane of multiply_record() begins to load.
template <int NT>
__device__ inline uint32_t x_lane_offset(int lane, uint32_t pitch) {
  return NT == 1 ? (lane & 7) * pitch + (lane >> 3) * 16
                 : ((lane & 7) + (lane >> 4) * 8) * pitch + ((lane >> 3) & 1) * 16;
}

// Decodes a chunk, 16 columns, of the record at base; `offsets`: where the lane's of it are. own
// and turned: the words of the masks that ldmatrix gives a lane for it, as they are and transposed,
// with the bits of the chunk at the bottom if there are those of another above. Calls
// take.operator()<I>(a) for tiles I = 0..3, 16 rows each, with the registers that mma.m16n8k16
// takes.
template <bool PAIR, template <bool> class COUNTER, class Take>
__device__ inline void decode_chunk(uint32_t base, uint32_t offsets, uint32_t own, uint32_t turned,
                                    const COUNTER<PAIR>& counter, Take take) {
  uint32_t at[4][4];
  counter.locate(at, base, load_shared4(offsets), turned);
  const auto tile = [&]<int I>() {
    uint32_t a[4];
    if constexpr (PAIR) {
      a[0] = load_pair<2 * I>(own, at[I][0]);
      a[1] = load_pair<2 * I + 16>(own, at[I][1]);
      a[2] = load_pair<2 * I + 1>(own, at[I][2]);
      a[3] = load_pair<2 * I + 17>(own, at[I][3]);
    } else {
      select_values(a, own >> (2 * I), at[I]);
    }
    take.template operator()<I>(a);
  };
  tile.template operator()<0>();
  tile.template operator()<1>();
  tile.template operator()<2>();
  tile.template operator()<3>();
}

// acc += record (shared memory at base) * x (shared memory at xa: x_lane_offset() after its first
// row, rows pitch bytes apart).
template <class T, int NT, int CH, bool PAIR, template <bool> class COUNTER>
__device__ inline void multiply_record(float (&acc)[4][NT][4], uint32_t base, uint32_t xa,
                                       uint32_t pitch,
                                       const RecordDecoder<CH, PAIR, COUNTER>& decoder) {
  uint32_t own[4], turned[4], b[(NT + 1) / 2][4];
#pragma unroll
  for (int c = 0; c < CH; ++c) {
    if (PAIR ? c == 0 : c % 4 == 0) {
      load_transposed(turned, base + decoder.lane16 + c * 128);
      load_matrices(own, base + decoder.lane16 + c * 128);
    }
    if (NT > 1 || (c & 1) == 0) {
#pragma unroll
      for (int n = 0; n < (NT + 1) / 2; ++n) {
        load_matrices(b[n], xa + n * 16 * pitch + c * 32);
      }
    }
    const int word = PAIR ? c / 2 : c % 4;
    const int shift = PAIR ? 8 * (c % 2) : 0;
    decode_chunk<PAIR>(base, base + decoder.offsets_at + c * 64, own[word] >> shift,
                       turned[word] >> shift, decoder.counter, [&]<int I>(const uint32_t(&a)[4]) {
#pragma unroll
                         for (int n = 0; n < NT; ++n) {
                           const int h = NT == 1 ? (c & 1) * 2 : (n & 1) * 2;
                           mma<T>(acc[I][n], a, b[n / 2][h], b[n / 2][h + 1]);
                         }
                       });
  }
}

// As RecordDecoder and multiply_record(), for a warp that has tile `tile` of each chunk alone: one
// 1-bit product has all that the tile needs.
template <int CH, bool PAIR>
struct TileDecoder {
  uint32_t lane16, offsets_at;
  uint32_t bits;    // where those of the tile begin in a word
  uint32_t nibble;  // where those of it and the tile beside it begin
  uint32_t before[2];

  // Of single values, a lane loads the offset of column pair lane / 4 in chunk lane % 4; of pairs,
  // those of column pairs 2 t and 2 t + 1 in every chunk, with t = lane % 4.
  __device__ TileDecoder(int lane, int tile, int /*group*/)
      : lane16(lane * 16),
        offsets_at(PAIR ? CH * 64 + (lane & 3) * 16 + tile * 4
                        : CH * 128 + (lane & 3) * 64 + (lane >> 3) * 16 + tile * 4 +
                              (lane >> 2 & 1) * 2),
        bits(2 * tile),
        nibble(tile / 2 * 4) {
    uint32_t am[2][2];
    before_masks<PAIR>(am, lane >> 2, lane & 3);
    before[0] = (tile & 1) != 0 ? am[0][1] : am[0][0];
    before[1] = (tile & 1) != 0 ? am[1][1] : am[1][0];
    asm volatile("" : "+r"(lane16), "+r"(offsets_at), "+r"(bits), "+r"(nibble));
  }
};

// Where the values of the tile are in 4 chunks side by side, for a lane: in the record, the second
// values of its pairs (its pairs, if the record has bits for those), and the bits of chunk c.
struct TilePlaces {
  uint32_t record;  // its address
  uint32_t at[4][4];
  uint32_t own[4];
};

// at[c] = where the values of the lane's column pairs begin in chunk first + c, for either row.
template <int CH, bool PAIR>
__device__ inline void load_offsets(uint32_t (&at)[4][4], uint32_t base, int first,
                                    const TileDecoder<CH, PAIR>& decoder) {
  if constexpr (PAIR) {
    uint32_t offsets[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      asm volatile("ld.shared.u32 %0, [%1];"
                   : "=r"(offsets[c])
                   : "r"(base + decoder.offsets_at + (first + c) * 64)
                   : "memory");
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      at[c][0] = at[c][2] = dot2(offsets[c], 0x0001u, 0);
      at[c][1] = at[c][3] = dot2(offsets[c], 0x0100u, 0);
    }
  } else {
    // Shared memory is what bounds the kernel: one load of 2 bytes a lane for all four chunks, and
    // a product with the bytes 1, 128 and 128 hands low byte + 2 * 128 * high byte to the lanes
    // that want it.
    uint32_t offset;
    asm volatile("ld.shared.u16 %0, [%1];"
                 : "=r"(offset)
                 : "r"(base + decoder.offsets_at + first * 64)
                 : "memory");
    const uint32_t bytes = permute(offset, 0, 0x7110);
    const uint32_t chunk = decoder.lane16 / 16 % 4;
#pragma unroll
    for (uint32_t c = 0; c < 4; ++c) {
      byte_mma(at[c], 0x00808001u, chunk == c ? bytes : 0u);
    }
  }
}

// Of chunks `first` to first + 3 of the record at `base`.
template <int CH, bool PAIR>
__device__ inline void locate_tiles(TilePlaces& places, uint32_t base, int first,
                                    const TileDecoder<CH, PAIR>& decoder) {
  constexpr int kChunkMaskBytes = PAIR ? 64 : 128;
  uint32_t turned[4];
  const uint32_t masks = base + decoder.lane16 + first * kChunkMaskBytes;
  if constexpr (PAIR) {
    load_2_transposed(turned, masks);
    load_2_matrices(places.own, masks);
  } else {
    load_transposed(turned, masks);
    load_matrices(places.own, masks);
  }
  places.record = base;
  load_offsets(places.at, base, first, decoder);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const uint32_t x = turned[PAIR ? c / 2 : c] >> (decoder.nibble + (PAIR ? 8 * (c & 1) : 0));
    const uint32_t bits = PAIR ? (x & 0x000f000fu) * 0x1111u : (x & 0x0f0f0f0fu) * 0x11u;
    const uint32_t from[4] = {places.at[c][0], places.at[c][1], places.at[c][2], places.at[c][3]};
    bit_mma(places.at[c], decoder.before, bits, from);
  }
}

// a = the values of the tile in chunk c of those, in the registers of mma.m16n8k16.
template <int CH, bool PAIR>
__device__ inline void load_values(uint32_t (&a)[4], const TilePlaces& places, int c,
                                   const TileDecoder<CH, PAIR>& decoder) {
  uint32_t at[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    at[i] = places.record + places.at[c][i];
  }
  if constexpr (PAIR) {
    const uint32_t w = places.own[c / 2] >> (decoder.bits + 8 * (c & 1));
    a[0] = load_pair<0>(w, at[0]);
    a[1] = load_pair<16>(w, at[1]);
    a[2] = load_pair<1>(w, at[2]);
    a[3] = load_pair<17>(w, at[3]);
  } else {
    select_values(a, places.own[c] >> decoder.bits, at);
  }
}

}  // namespace sparsellm::tca_bme
