#pragma once

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/device/cuda_types.cuh"
#include "sparse/general_sparse/cuda/row_matrix.h"
#include "sparse/general_sparse/device/reductions.cuh"
#include "sparse/general_sparse/device/warp_lanes.cuh"

// C = A * B where rows of A may have any lengths, and B more rows than a shared memory holds: the
// tokens of a row of B are gathered from device memory (GeneralSparse, Wang et al., ATC 2025). G
// threads of a group have the same entries and T tokens each; `row_groups` groups share a row and
// add their sums by shuffles (WARP_TOTAL; THREAD_TOTAL for one group). Rows that would keep the
// others of a warp waiting are cut into pieces, each of a thread block (BLOCK_TOTAL), whose sums a
// second kernel adds in order.
namespace sparsellm::general_sparse {

// C has:
//   Value     of A, B and C: float, __half, __nv_bfloat16
//   Position  of the encoding: uint16_t, uint32_t
//   V         entries of a unit: 1, 4
//   T, G      tokens of a thread, threads of a group
template <class C>
struct RowProduct {
  using Value = typename C::Value;
  using Position = typename C::Position;
  static constexpr int V = C::V;
  static constexpr int T = C::T;
  static constexpr int G = C::G;
  static constexpr int kTile = T * G;
  static constexpr int kBatch = 4;  // entries whose loads are under way at once
  static constexpr int kBatchUnits = kBatch / V;
  static_assert(kBatch % V == 0);

  const RowMatrix& m;
  const RowOperands& o;
  int token;  // the first of the thread

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

  // Entries of the units from begin to end, `share` of `shares` of them: batches take turns.
  __device__ void multiply(uint32_t begin, uint32_t end, uint32_t share, uint32_t shares,
                           float (&sums)[T]) const {
    const auto* const positions = reinterpret_cast<const Position*>(m.positions);
    const auto* const values = reinterpret_cast<const Value*>(m.values);
    for (uint32_t unit = begin + share * kBatchUnits; unit < end; unit += shares * kBatchUnits) {
      uint32_t at[kBatch];
      float a[kBatch];
      if constexpr (V == kBatch) {
        const auto four =
            *reinterpret_cast<const Vector<Position, V>*>(positions + int64_t{unit} * V);
#pragma unroll
        for (int i = 0; i < V; ++i) {
          at[i] = four.elements[i];
        }
        load_vector<Value, V>(values + int64_t{unit} * V, a);
      } else {
        static_assert(V == 1);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          // Past the end the first entry again, times zero.
          const bool inside = unit + i < end;
          const uint32_t number = inside ? unit + i : unit;
          at[i] = positions[number];
          a[i] = inside ? f32_of(values[number]) : 0.0f;
        }
      }
      float x[kBatch][T];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        load_b(at[i], x[i]);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        thread_total(a[i], x[i], sums);
      }
    }
  }

  __device__ void store(uint32_t row, const float (&sums)[T]) const {
    Value* const to = static_cast<Value*>(o.c) + row * o.c_row + token * o.c_token;
    if constexpr (T > 1) {
      if (o.vectors && o.c_token == 1 && token + T <= o.tokens) {
        store_vector<Value, T>(sums, to);
        return;
      }
    }
#pragma unroll
    for (int t = 0; t < T; ++t) {
      if (token + t < o.tokens) {
        to[t * o.c_token] = from_f32<Value>(sums[t]);
      }
    }
  }

  // The row in this place of the encoding.
  __device__ uint32_t row_in(uint32_t place) const {
    return m.row_order == nullptr ? place
                                  : place / m.window_rows * m.window_rows + m.row_order[place];
  }

  __device__ void whole_rows() const {
    const unsigned row_groups = static_cast<unsigned>(o.row_groups);
    const unsigned group = threadIdx.x / G;
    const unsigned place = blockIdx.x * (blockDim.x / G / row_groups) + group / row_groups;
    float sums[T] = {};
    bool mine = false;
    if (place < static_cast<unsigned>(m.rows)) {
      const uint32_t begin = m.starts[place];
      const uint32_t end = m.starts[place + 1];
      mine = end - begin <= static_cast<uint32_t>(o.longest);
      if (mine) {
        multiply(begin, end, group % row_groups, row_groups, sums);
      }
    }
    for (unsigned bit = row_groups / 2; bit > 0; bit /= 2) {
#pragma unroll
      for (int t = 0; t < T; ++t) {
        sums[t] += __shfl_xor_sync(0xffffffffu, sums[t], bit * G);
      }
    }
    if (mine && group % row_groups == 0) {
      store(row_in(place), sums);
    }
  }

  __device__ void piece() const {
    __shared__ float part_sums[C::kThreads / 32 * kTile];
    __shared__ unsigned started[C::kThreads / 32];
    const RowPiece piece = o.pieces[blockIdx.x - o.row_blocks];
    const int groups = static_cast<int>(blockDim.x) / G;
    const int group = static_cast<int>(threadIdx.x) / G;
    float sums[T] = {};
    multiply(piece.begin, piece.end, group, groups, sums);
    warp_total<WarpLanes<G>, T>(sums);
    const Parts<G> parts{.sums = part_sums + threadIdx.x % G,
                         .started = started,
                         .stride = kTile,
                         .count = static_cast<int>(blockDim.x) / 32};
    if (threadIdx.x % 32 < G) {
      put_part<G, T>(parts, static_cast<int>(threadIdx.x) / 32, false, sums);
    }
    __syncthreads();
    if (threadIdx.x >= G) {
      return;
    }
#pragma unroll
    for (int t = 0; t < T; ++t) {
      sums[t] = block_total<G>(parts, t);
    }
    if (piece.partial == kWholeRow) {
      store(piece.row, sums);
      return;
    }
    float* const to = o.partials + (int64_t{blockIdx.y} * o.partial_count + piece.partial) * kTile +
                      token % kTile;
#pragma unroll
    for (int t = 0; t < T; ++t) {
      to[t] = sums[t];
    }
  }
};

// Blocks: row_blocks of whole rows, then the pieces; along y the tiles of tokens.
template <class C>
__global__ void __launch_bounds__(C::kThreads)
    row_product_kernel(const __grid_constant__ RowMatrix m, const __grid_constant__ RowOperands o) {
  using Product = RowProduct<C>;
  launch_dependents();
  wait_on_dependencies();
  const Product product{m, o,
                        static_cast<int>(blockIdx.y) * Product::kTile +
                            static_cast<int>(threadIdx.x) % Product::G * Product::T};
  if (static_cast<int>(blockIdx.x) < o.row_blocks) {
    product.whole_rows();
  } else {
    product.piece();
  }
}

// A group of threads has a row of several pieces.
template <class C>
__global__ void __launch_bounds__(C::kThreads)
    add_pieces_kernel(const __grid_constant__ RowMatrix m, const __grid_constant__ RowOperands o) {
  using Product = RowProduct<C>;
  launch_dependents();
  wait_on_dependencies();
  const int number = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / Product::G;
  if (number >= o.split_count) {
    return;
  }
  const Product product{m, o,
                        static_cast<int>(blockIdx.y) * Product::kTile +
                            static_cast<int>(threadIdx.x) % Product::G * Product::T};
  const SplitRow row = o.split_rows[number];
  const float* from = o.partials +
                      (int64_t{blockIdx.y} * o.partial_count + row.first_partial) * Product::kTile +
                      product.token % Product::kTile;
  float sums[Product::T] = {};
  for (uint32_t i = 0; i < row.partials; ++i, from += Product::kTile) {
#pragma unroll
    for (int t = 0; t < Product::T; ++t) {
      sums[t] += from[t];
    }
  }
  product.store(row.row, sums);
}

}  // namespace sparsellm::general_sparse
