#pragma once

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/device/cuda_types.cuh"
#include "sparse/general_sparse/cuda/row_matrix.h"
#include "sparse/general_sparse/device/reductions.cuh"
#include "sparse/general_sparse/device/warp_lanes.cuh"

// C = A * B where rows of A may have any lengths, and B more rows than a shared memory holds: the
// tokens of a row of B are gathered from device memory (GeneralSparse, Wang et al., ATC 2025). G
// threads of a group have the same entries and T tokens each; an entry has values for R rows, which
// share what was gathered. By the length of a row it is
//   of `row_groups` groups, which add their sums by shuffles (WARP_TOTAL; THREAD_TOTAL for one
//   group), with others of about the same length in a warp,
//   of a warp, where it would keep the others of a warp waiting (WARP_TOTAL), or
//   cut into pieces, each of a thread block (BLOCK_TOTAL), whose sums a second kernel adds in
//   order.
// "Row" is a group of R rows below.
namespace sparsellm::general_sparse {

// What the element of C in a row is, by its sum.
template <class Value>
__device__ float element_of_c(const RowOperands& o, int64_t row, float sum) {
  sum += o.bias == nullptr ? 0.0f : f32_of(static_cast<const Value*>(o.bias)[row]);
  return o.relu && sum < 0.0f ? 0.0f : sum;
}

// C has:
//   Value     of A, B and C: float, __half, __nv_bfloat16
//   Position  of the encoding: uint16_t, uint32_t
//   R, V      rows that share an entry, entries of a unit: 1, 4 (R is 1 then)
//   T, G      tokens of a thread, threads of a group
//   kThreads  of a block
template <class C>
struct RowProduct {
  using Value = typename C::Value;
  using Position = typename C::Position;
  static constexpr int R = C::R;
  static constexpr int V = C::V;
  static constexpr int T = C::T;
  static constexpr int G = C::G;
  static constexpr int kTile = T * G;
  static constexpr int kSums = R * kTile;  // of a row
  static constexpr int kWarps = C::kThreads / 32;
  static constexpr int kBatch = R > 4 ? 2 : 4;  // entries that are gathered at once
  static constexpr int kBatchUnits = kBatch / V;
  static_assert(kBatch % V == 0 && (V == 1 || R == 1));

  const RowMatrix& m;
  const RowOperands& o;
  int token;  // the first of the thread

  struct Batch {
    uint32_t at[kBatch];
    float a[kBatch][R];
  };

  __device__ void load(Batch& batch, uint32_t unit, uint32_t end) const {
    const auto* const positions = reinterpret_cast<const Position*>(m.positions);
    const auto* const values = reinterpret_cast<const Value*>(m.values);
    if constexpr (V == kBatch) {
      const auto four =
          *reinterpret_cast<const Vector<Position, V>*>(positions + int64_t{unit} * V);
      float a[V];
      load_vector<Value, V>(values + int64_t{unit} * V, a);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        batch.at[i] = four.elements[i];
        batch.a[i][0] = a[i];
      }
    } else {
      static_assert(V == 1);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        // Past the end the first entry again, times zero.
        const bool inside = unit + i < end;
        const uint32_t number = inside ? unit + i : unit;
        batch.at[i] = positions[number];
        load_vector<Value, R>(values + int64_t{number} * R, batch.a[i]);
#pragma unroll
        for (int r = 0; r < R; ++r) {
          batch.a[i][r] = inside ? batch.a[i][r] : 0.0f;
        }
      }
    }
  }

  __device__ void load_b(uint32_t position, float (&x)[T]) const {
    const Value* const from = static_cast<const Value*>(o.b) + position * o.b_stride + token;
    if constexpr (T > 1) {
      if (o.vectors && token + T <= o.tokens) {
        load_vector<Value, T>(from, x);
        return;
      }
    }
#pragma unroll
    for (int t = 0; t < T; ++t) {
      x[t] = token + t < o.tokens ? f32_of(from[t]) : 0.0f;
    }
  }

  // Entries of the units from begin to end, `share` of `shares` of them: batches take turns. A
  // batch is loaded while the one before it is gathered.
  __device__ void multiply(uint32_t begin, uint32_t end, uint32_t share, uint32_t shares,
                           float (&sums)[R][T]) const {
    const uint32_t step = shares * kBatchUnits;
    uint32_t unit = begin + share * kBatchUnits;
    Batch next;
    if (unit < end) {
      load(next, unit, end);
    }
    while (unit < end) {
      const Batch batch = next;
      float x[kBatch][T];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        load_b(batch.at[i], x[i]);
      }
      unit += step;
      if (unit < end) {
        load(next, unit, end);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
          thread_total(batch.a[i][r], x[i], sums[r]);
        }
      }
    }
  }

  __device__ void store(uint32_t row, float (&sums)[R][T]) const {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int64_t at = int64_t{row} * R + r;
      if (R > 1 && at >= m.rows) {
        return;
      }
#pragma unroll
      for (int t = 0; t < T; ++t) {
        sums[r][t] = element_of_c<Value>(o, at, sums[r][t]);
      }
      Value* const to = static_cast<Value*>(o.c) + at * o.c_row + token * o.c_token;
      if constexpr (T > 1) {
        if (o.vectors && o.c_token == 1 && token + T <= o.tokens) {
          store_vector<Value, T>(sums[r], to);
          continue;
        }
      }
#pragma unroll
      for (int t = 0; t < T; ++t) {
        if (token + t < o.tokens) {
          to[t * o.c_token] = from_f32<Value>(sums[r][t]);
        }
      }
    }
  }

  // The row in this place of the encoding.
  __device__ uint32_t row_in(uint32_t place) const {
    return m.row_order == nullptr ? place
                                  : place / m.window_groups * m.window_groups + m.row_order[place];
  }

  __device__ void whole_rows(unsigned block) const {
    const unsigned row_groups = static_cast<unsigned>(o.row_groups);
    const unsigned group = threadIdx.x / G;
    const unsigned place = block * (C::kThreads / G / row_groups) + group / row_groups;
    float sums[R][T] = {};
    bool mine = false;
    if (place < static_cast<unsigned>(m.groups)) {
      const uint32_t begin = m.starts[place];
      const uint32_t end = m.starts[place + 1];
      mine = end - begin <= static_cast<uint32_t>(o.longest);
      if (mine) {
        multiply(begin, end, group % row_groups, row_groups, sums);
      }
    }
    for (unsigned bit = row_groups / 2; bit > 0; bit /= 2) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int t = 0; t < T; ++t) {
          sums[r][t] += __shfl_xor_sync(0xffffffffu, sums[r][t], bit * G);
        }
      }
    }
    if (mine && group % row_groups == 0) {
      store(row_in(place), sums);
    }
  }

  // The sums of a warp, by all of its groups.
  __device__ void multiply_and_add(const RowPiece& piece, unsigned share, unsigned shares,
                                   float (&sums)[R][T]) const {
    multiply(piece.begin, piece.end, share, shares, sums);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      warp_total<WarpLanes<G>, T>(sums[r]);
    }
  }

  __device__ void warp_row(unsigned block) const {
    const unsigned number = block * kWarps + threadIdx.x / 32;
    if (number >= static_cast<unsigned>(o.warp_rows)) {
      return;
    }
    const RowPiece piece = o.pieces[o.block_pieces + number];
    float sums[R][T] = {};
    multiply_and_add(piece, threadIdx.x % 32 / G, 32 / G, sums);
    if (threadIdx.x % 32 < G) {
      store(piece.row, sums);
    }
  }

  __device__ void block_piece(unsigned block) const {
    __shared__ float part_sums[kWarps * kSums];
    __shared__ unsigned started[kWarps];
    const RowPiece piece = o.pieces[block];
    float sums[R][T] = {};
    multiply_and_add(piece, threadIdx.x / G, C::kThreads / G, sums);
    const auto parts_of = [&](int r) {
      return PartSums<G>{.sums = part_sums + r * kTile + threadIdx.x % G,
                         .started = started,
                         .stride = kSums,
                         .count = kWarps};
    };
    if (threadIdx.x % 32 < G) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        put_part<G, T>(parts_of(r), static_cast<int>(threadIdx.x) / 32, false, sums[r]);
      }
    }
    __syncthreads();
    if (threadIdx.x >= G) {
      return;
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int t = 0; t < T; ++t) {
        sums[r][t] = block_total<G>(parts_of(r), t);
      }
    }
    if (piece.partial == kWholeRow) {
      store(piece.row, sums);
      return;
    }
    float* const to = partials(piece.partial);
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int t = 0; t < T; ++t) {
        to[r * kTile + t] = sums[r][t];
      }
    }
  }

  // Where the first of the thread's tokens is.
  __device__ float* partials(uint32_t number) const {
    return o.partials + (int64_t{blockIdx.y} * o.partial_count + number) * kSums + token % kTile;
  }
};

template <class C>
__device__ RowProduct<C> row_product(const RowMatrix& m, const RowOperands& o) {
  using Product = RowProduct<C>;
  return {m, o,
          static_cast<int>(blockIdx.y) * Product::kTile +
              static_cast<int>(threadIdx.x) % Product::G * Product::T};
}

// Blocks: those of pieces, of rows of a warp, of other rows; along y the tiles of tokens.
template <class C>
__global__ void __launch_bounds__(C::kThreads)
    row_product_kernel(const __grid_constant__ RowMatrix m, const __grid_constant__ RowOperands o) {
  launch_dependents();
  wait_on_dependencies();
  const RowProduct<C> product = row_product<C>(m, o);
  const unsigned first_rows = static_cast<unsigned>(o.block_pieces + o.warp_blocks);
  if (blockIdx.x >= first_rows) {
    product.whole_rows(blockIdx.x - first_rows);
  } else if (blockIdx.x >= static_cast<unsigned>(o.block_pieces)) {
    product.warp_row(blockIdx.x - o.block_pieces);
  } else {
    product.block_piece(blockIdx.x);
  }
}

// A block has a row of several pieces. Threads that have the same sum share its partial sums.
template <class C>
__global__ void __launch_bounds__(C::kThreads)
    add_pieces_kernel(const __grid_constant__ RowMatrix m, const __grid_constant__ RowOperands o) {
  using Product = RowProduct<C>;
  constexpr int kSums = Product::kSums;
  constexpr int kShares = kSums < C::kThreads ? C::kThreads / kSums : 1;
  __shared__ float share_sums[kShares * kSums];
  launch_dependents();
  wait_on_dependencies();
  const SplitRow row = o.split_rows[blockIdx.x];
  const float* const partials =
      o.partials + (int64_t{blockIdx.y} * o.partial_count + row.first_partial) * kSums;
  for (int i = static_cast<int>(threadIdx.x); i < kShares * kSums; i += C::kThreads) {
    float sum = 0.0f;
#pragma unroll 8
    for (uint32_t number = i / kSums; number < row.partials; number += kShares) {
      sum += partials[number * kSums + i % kSums];
    }
    share_sums[i] = sum;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kSums; i += C::kThreads) {
    float sum = share_sums[i];
    for (int share = 1; share < kShares; ++share) {
      sum += share_sums[share * kSums + i];
    }
    const int64_t m_row = int64_t{row.row} * Product::R + i / Product::kTile;
    const int token = static_cast<int>(blockIdx.y) * Product::kTile + i % Product::kTile;
    if (m_row < m.rows && token < o.tokens) {
      using Value = typename C::Value;
      static_cast<Value*>(o.c)[m_row * o.c_row + token * o.c_token] =
          from_f32<Value>(element_of_c<Value>(o, m_row, sum));
    }
  }
}

}  // namespace sparsellm::general_sparse
