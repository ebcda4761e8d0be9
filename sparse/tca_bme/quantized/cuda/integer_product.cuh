#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/device/async_copy.cuh"
#include "kernels/device/copy_groups.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/pipeline/fragment_store.cuh"
#include "sparse/tca_bme/cuda/quotient.cuh"
#include "sparse/tca_bme/quantized/cuda/quantized_tile.cuh"
#include "sparse/tca_bme/quantized/cuda/x_integers.cuh"

namespace sparsellm::tca_bme {

__device__ inline void byte_mma(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The first of the rows that a lane has of fragment f of IntegerProduct; the others are 8 apart.
template <int NT>
__device__ inline int first_row_of(int first_row, int f, int lane) {
  if constexpr (NT == 1) {
    return first_row + 32 * f + (lane >> 2);
  } else {
    return first_row + f / (NT / 2) * 16 + (lane >> 2);
  }
}

// Stores fragment f of IntegerProduct, added up over all of K, with the factor
// of each of the lane's rows.
template <class T, int NT, class Parameters, class Factor>
__device__ inline void store_totals(const Parameters& p, int first_row, int f, int lane,
                                    float4 sums, Factor factor) {
  if constexpr (NT == 1) {
    const int token = lane & 3;
    const float of_rows[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row_of<NT>(first_row, f, lane) + 8 * i;
      if (row < p.rows && token < p.tokens) {
        const T* const bias = static_cast<const T*>(p.bias);
        const float v = of_rows[i] * factor(i) + (bias != nullptr ? f32_of(bias[row]) : 0.f);
        const float least = p.relu ? 0.f : -INFINITY;
        static_cast<T*>(p.y)[token * p.y_stride + row] = from_f32<T>(v < least ? least : v);
      }
    }
  } else {
    constexpr int kTokenTiles = NT / 2;
    const int tile_row = first_row + f / kTokenTiles * 16;
    const float upper = factor(0);
    const float lower = factor(1);
    store_fragment<T>(p, tile_row, f % kTokenTiles * 8, lane,
                      make_float4(sums.x * upper, sums.y * upper, sums.z * lower, sums.w * lower));
  }
}

// What products in integers share (PRODUCT of record_matmul_kernel): x of each
// kXBlock columns is rounded to 16 bits of its largest magnitude, as 256 times
// a high byte and a low byte, which are two columns of B. The sums of a block
// are exact, so they do not depend on their order. NT: 1 for up to 4 tokens, 2
// for up to 8, 4 for up to 16.
template <class T, int NT>
class IntegerProduct {
 public:
  using Element = T;
  static constexpr int kRecordColumns = QuantizedLayout::kColumns;
  static constexpr int kTokens = 4 * NT;
  static constexpr int kXPadding = NT == 1 ? 32 : 16;
  static constexpr bool kPreparesX = true;
  static constexpr int kFragments = 2 * NT;
  static constexpr int kRowsOfFragment = NT == 1 ? 4 : 2;  // of a lane, 8 apart
  static constexpr int kMaxThreads = NT <= 2 ? 512 : 384;

  __device__ IntegerProduct(int lane, uint32_t x, uint32_t pitch) : pitch_(pitch) {
    // Matrices of ldmatrix: of 16 columns each, for NT > 1 those of two tiles of B, whose tokens
    // are the even and the odd ones of eight. Rows of a matrix: the high and the low bytes of each
    // token.
    const int token = NT == 1 ? (lane & 7) >> 1 : (lane & 6) + (lane >> 4);
    const int columns = NT == 1 ? lane >> 3 : (lane >> 3) & 1;
    x_ = x + token * pitch + (lane & 1) * 16 + columns * 32;
    const int blocks = blocks_in(pitch);
    scales_ = x + kTokens * pitch + (NT == 1 ? lane & 3 : 2 * (lane & 3)) * blocks * 4;
    next_token_ = blocks * 4;
  }

  // x of a part of the columns.
  struct XPart {
    const T* x;
    int64_t stride;  // of rows
    int tokens;
    uint32_t inverse;  // of tokens, for quotient()
    int records;       // columns
    int valid;         // of their columns, those that x has
    bool aligned;      // to 16 bytes, each row, and `valid` to as many
  };
  // Makes integers of x in shared memory, with their scales after them, by all warps of a block.
  // Each lane makes integers of what it copied itself; between begin() and finish() the copies are
  // on their way. Loops are short: the code is new to a multiprocessor's cache in every launch.
  class XPreparation {
   public:
    __device__ XPreparation(uint32_t x, uint32_t pitch, int warp, int warps, int lane)
        : x_(x), pitch_(pitch), warp_(warp), warps_(warps), lane_(lane) {}

    __device__ void begin(const XPart& part) {
      tokens_ = part.tokens;
      inverse_ = part.inverse;
      columns_ = part.records * kRecordColumns;
      for_all([&](int token, int column, bool mine, uint32_t at) {
        const T* const from = part.x + token * part.stride + column;
        if (mine && part.aligned) {
          const int left = max(part.valid - column, 0);
          copy16(at, from, min(left, 8) * 2);
          copy16(at + 16, left > 8 ? from + 8 : from, min(max(left - 8, 0), 8) * 2);
        } else if (mine) {
#pragma unroll 1
          for (int k = 0; k < kLaneColumns; ++k) {
            store_shared16(at + k * 2, column + k < part.valid ? from[k] : T(0.f));
          }
        }
      });
    }
    __device__ void finish() {
      wait_for_all_copies();
      const int room = blocks_in(pitch_);
      for_all([&](int token, int column, bool mine, uint32_t at) {
        uint32_t pairs[8] = {};
        if (mine) {
          const uint4 first = load_shared4(at);
          const uint4 second = load_shared4(at + 16);
          pairs[0] = first.x, pairs[1] = first.y, pairs[2] = first.z, pairs[3] = first.w;
          pairs[4] = second.x, pairs[5] = second.y, pairs[6] = second.z, pairs[7] = second.w;
        }
        const float largest = largest_magnitude<T>(pairs);
        const float steps = steps_of(largest);
        if (lane_ == 0) {
          store_float(x_ + kTokens * pitch_ + (token * room + column / kXBlock) * 4,
                      scale_of(largest));
        }
        if (mine) {
          uint32_t high[4], low[4];
          split<T>(pairs, steps, high, low);
          store_shared4(at, high);
          store_shared4(at + 16, low);
        }
      });
    }

   private:
    static constexpr int kLaneColumns = 16;

    // visit(token, column, mine, at) for the blocks of x that the warp has; the lane has the
    // columns from `column` on, which are at `at` in shared memory, if they are of this part.
    template <class Visit>
    __device__ void for_all(Visit visit) const {
      const int blocks = (columns_ + kXBlock - 1) / kXBlock;
#pragma unroll 1
      for (int i = warp_; i < tokens_ * blocks; i += warps_) {
        const int block = quotient(i, inverse_);
        const int token = i - block * tokens_;
        const int column = block * kXBlock + lane_ * kLaneColumns;
        visit(token, column, column < columns_, x_ + token * pitch_ + column * 2);
      }
    }

    uint32_t x_, pitch_;
    int warp_, warps_, lane_;
    int tokens_, columns_;
    uint32_t inverse_;
  };

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        total_[m][n][0] = total_[m][n][1] = 0.f;
      }
    }
    clear_sums();
  }
  // NT == 1: of tiles 2 f and 2 f + 1 rows g and 8 + g of token t; NT == 2: as
  // of mma.m16n8k16.
  __device__ float4 fragment(int f) const {
    if constexpr (NT == 1) {
      return make_float4(total_[2 * f][0][0], total_[2 * f][0][1], total_[2 * f + 1][0][0],
                         total_[2 * f + 1][0][1]);
    } else {
      const int m = f / (NT / 2);
      const int n = 2 * (f % (NT / 2));
      return make_float4(total_[m][n][0], total_[m][n + 1][0], total_[m][n][1],
                         total_[m][n + 1][1]);
    }
  }

 protected:
  static constexpr int kRecordsOfBlock = kXBlock / kRecordColumns;
  static constexpr int kChunksOfX = NT == 1 ? 4 : 2;  // that load_x() is for

  static constexpr int kLoads = (NT + 1) / 2;  // of load_x()

  // B of chunks c to c + kChunksOfX - 1 of record column k.
  __device__ void load_x(uint32_t (&b)[kLoads][4], int k, int c) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      load_matrices(b[i], x_ + i * 8 * pitch_ + k * (kRecordColumns * 2) + c / 2 * 64);
    }
  }
  // Adds the products with A, of chunk c, to sums of n = 0, ...
  __device__ static void multiply(int (&sums)[NT][4], const uint32_t (&a)[4],
                                  const uint32_t (&b)[kLoads][4], int c) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const int first = NT == 1 ? 2 * ((c >> 1) & 1) : 2 * (n % 2);
      byte_mma(sums[n], a, b[n / 2][first], b[n / 2][first + 1]);
    }
  }
  // Adds the sums of record column k, and of those before it in its block, with the scales of x and
  // factor(m, h), that of row 8 h + g of tile m, to the totals, and begins new ones. excess(n):
  // what the sums of tile n of B have too much.
  template <class Factor, class Excess>
  __device__ void add_sums(int k, Factor factor, Excess excess) {
    const uint32_t at = scales_ + k / kRecordsOfBlock * 4;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const float scale = __uint_as_float(load_word<0>(at + (n / 2 * 8 + n % 2) * next_token_));
      const int less = excess(n);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int sum = 256 * sums_[m][n][2 * h] + (sums_[m][n][2 * h + 1] - less);
          total_[m][n][h] += scale * factor(m, h) * static_cast<float>(sum);
        }
      }
    }
    clear_sums();
  }

  int sums_[4][NT][4];
  float total_[4][NT][2];

 private:
  // Blocks of x in a row, at most.
  __device__ static int blocks_in(uint32_t pitch) {
    return static_cast<int>((pitch + kXBlock * 2 - 1) / (kXBlock * 2));
  }
  __device__ static void store_float(uint32_t at, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
  }
  __device__ static void store_shared4(uint32_t at, const uint32_t (&v)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]),
                 "r"(v[3])
                 : "memory");
  }
  __device__ void clear_sums() {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sums_[m][n][c] = 0;
        }
      }
    }
  }

  uint32_t x_;
  uint32_t pitch_;
  uint32_t scales_;      // of the lane's first token
  uint32_t next_token_;  // bytes from them to those of the next token
};

}  // namespace sparsellm::tca_bme
