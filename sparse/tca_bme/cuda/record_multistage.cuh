#pragma once

#include <cstdint>

#include "kernels/device/async_copy.cuh"
#include "kernels/device/copy_groups.cuh"
#include "kernels/pipeline/fragment_store.cuh"
#include "sparse/tca_bme/cuda/record_matmul_cuda.h"
#include "sparse/tca_bme/cuda/record_product.cuh"

namespace sparsellm::tca_bme {

constexpr int kMaxStageWarps = 8;           // of a thread block
constexpr int kMaxStages = kMaxCopyGroups;  // of a warp's ring
constexpr int kRoundUnits = 128;            // of 16 bytes: the sums of 64 rows x 8 tokens

// y [tokens, rows] = x [tokens, columns] * W^T on compute capability 8.0 and above. A thread block
// takes whole row blocks of W, every gridDim.x-th. The record columns, K, are cut into `parts`
// contiguous parts (sliced-K), the same for any number of tokens and warps, so that results are
// batch-invariant; in pass q, warp w computes part q * warps + w. Each warp has a ring of stages in
// shared memory, a record and the columns of x that belong to it, which its own lanes fill ahead
// across the ends of parts and row blocks. The warps synchronise only at the end of a pass, where
// their sums are added in the order of the parts.
//
// Shared memory: tiles float4 [warps][128], what each warp has of a round's 8 tokens; if there are
// several passes, sums float4 [token tiles][128], of the passes before; then the rings of the
// warps.
struct MultistageParameters {
  const uint8_t* records;
  const uint32_t* starts;
  const void* x;
  void* y;
  const void* bias;
  const float* scales;  // of rows, if the values have any
  int64_t x_stride, y_stride;
  int rows, columns, tokens;
  int row_blocks, record_columns;
  int group;  // columns that share a scale in records, if they do
  int log_parts, passes;
  int stages, stage_bytes;
  int record_bytes;  // of a record in a stage; x follows
  int rings_at;      // byte offset in shared memory
  bool relu;
  bool x_aligned;  // to 16 bytes, each row, and `columns` to as many
};

__device__ inline void store_zeros16(uint32_t to) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}

// PRODUCT: how a record is multiplied (record_product.cuh), with x as it is.
template <class PRODUCT>
__global__ void __launch_bounds__(kMaxStageWarps * 32, 1)
    record_multistage_kernel(const __grid_constant__ MultistageParameters p) {
  using T = typename PRODUCT::Element;
  static_assert(!PRODUCT::kPreparesX);
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kTiles = PRODUCT::kTokenTiles;
  constexpr int kColumns = PRODUCT::kRecordColumns;
  constexpr int kPitch = kColumns * 2 + PRODUCT::kXPadding;  // of x in a stage
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const int warps = blockDim.x >> 5;
  float4* const tiles = reinterpret_cast<float4*>(shared);
  float4* const sums = tiles + warps * kRoundUnits;
  const uint32_t ring = shared_address(shared) + p.rings_at + warp * p.stages * p.stage_bytes;

  const auto first_column_of = [&](int part) { return (p.record_columns * part) >> p.log_parts; };

  // What is fetched next: each lane has the table entry of one of the next `count` records of a
  // part, and of one of those after them, to hide the latency of the table.
  struct Entries {
    uint32_t start = 0, end = 0;
    int column = 0, count = 0;
  };
  struct {
    int row_block, pass = 0, next = 0, end = 0;
    const uint32_t* starts = nullptr;  // of the row block
    int used = 0;                      // of `current`
    Entries current, ahead;
  } fetch;
  fetch.row_block = blockIdx.x;
  const auto load_table = [&] {
    while (fetch.next == fetch.end && fetch.row_block < p.row_blocks) {
      const int part = fetch.pass * warps + warp;
      fetch.next = first_column_of(part);
      fetch.end = first_column_of(part + 1);
      fetch.starts = p.starts + static_cast<int64_t>(fetch.row_block) * p.record_columns;
      if (++fetch.pass == p.passes) {
        fetch.pass = 0;
        fetch.row_block += gridDim.x;
      }
    }
    Entries e;
    e.column = fetch.next;
    e.count = min(fetch.end - fetch.next, 32);
    if (lane < e.count) {
      e.start = __ldg(fetch.starts + fetch.next + lane);
      e.end = __ldg(fetch.starts + fetch.next + lane + 1);
    }
    fetch.next += e.count;
    return e;
  };

  // The columns of x from `column0` on that a record has, to shared memory; those after the last
  // as zeros. Tokens after the last get no x: whatever is in their place reaches only columns of
  // the product that are not stored.
  const auto fetch_x = [&](uint32_t to, int column0) {
    const T* const x = static_cast<const T*>(p.x) + column0;
    if (p.x_aligned) {
      constexpr int kUnits = kColumns / 8;  // of 16 bytes, in a row
      constexpr int kRowsAtOnce = 32 / kUnits;
      constexpr int kSteps = PRODUCT::kTokens / kRowsAtOnce;
      const int row = lane / kUnits;
      const int column = lane % kUnits * 8;
      const bool inside = column0 + column < p.columns;
      const T* from = x + row * p.x_stride + column;
      to += row * kPitch + column * 2;
#pragma unroll(kSteps < 8 ? kSteps : 8)
      for (int step = 0; step < kSteps; ++step) {
        if (row + step * kRowsAtOnce < p.tokens) {
          if (inside) {
            copy16(to + step * kRowsAtOnce * kPitch, from);
          } else {
            store_zeros16(to + step * kRowsAtOnce * kPitch);
          }
        }
        from += kRowsAtOnce * p.x_stride;
      }
    } else {
      constexpr int kOfLane = kColumns / 32;
#pragma unroll 1
      for (int token = 0; token < p.tokens; ++token) {
        T values[kOfLane];  // all are loaded before the first is stored
#pragma unroll
        for (int i = 0; i < kOfLane; ++i) {
          const int column = lane + i * 32;
          values[i] = column0 + column < p.columns ? x[token * p.x_stride + column] : T(0.f);
        }
#pragma unroll
        for (int i = 0; i < kOfLane; ++i) {
          store_shared16(to + token * kPitch + (lane + i * 32) * 2, values[i]);
        }
      }
    }
  };

  // The next record to a stage that no lane reads any more, as one group of copies; an empty one
  // after the last record, so that the number of groups says which records are there.
  const auto fetch_into = [&](uint32_t stage) {
    if (fetch.current.count != 0) {
      const uint32_t start = __shfl_sync(~0u, fetch.current.start, fetch.used);
      const int units = static_cast<int>(__shfl_sync(~0u, fetch.current.end, fetch.used) - start);
      const uint8_t* from = p.records + (static_cast<uint64_t>(start) + lane) * 16;
      uint32_t to = stage + lane * 16;
      constexpr int kAtOnce = 4;
#pragma unroll 1
      for (int left = units; left > 0; left -= kAtOnce * 32) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (i * 32 + lane < left) {
            copy16(to + i * 512, from + i * 512);
          }
        }
        from += kAtOnce * 512;
        to += kAtOnce * 512;
      }
      fetch_x(stage + p.record_bytes, (fetch.current.column + fetch.used) * kColumns);
      if (++fetch.used == fetch.current.count) {
        fetch.used = 0;
        fetch.current = fetch.ahead;
        fetch.ahead = load_table();
      }
    }
    commit_copies();
  };

  fetch.current = load_table();
  fetch.ahead = load_table();
#pragma unroll 1
  for (int s = 0; s < p.stages; ++s) {
    fetch_into(ring + s * p.stage_bytes);
  }

  PRODUCT product(lane, p.record_bytes, kPitch, p.group);  // x as an offset in a stage
  int stage = 0;
  int turn = 0;  // of the warps that add
#pragma unroll 1
  for (int row_block = blockIdx.x; row_block < p.row_blocks; row_block += gridDim.x) {
#pragma unroll 1
    for (int pass = 0; pass < p.passes; ++pass) {
      product.clear();
      const int part = pass * warps + warp;
      const int count = first_column_of(part + 1) - first_column_of(part);
#pragma unroll 1
      for (int k = 0; k < count; ++k) {
        const uint32_t at = ring + stage * p.stage_bytes;
        wait_for_oldest_copies(p.stages);
        __syncwarp();  // the copies of all lanes are there
        product.multiply_at(at, at);
        __syncwarp();  // no lane reads the stage any more
        fetch_into(at);
        stage = stage + 1 == p.stages ? 0 : stage + 1;
      }

      const bool last = pass + 1 == p.passes;
#pragma unroll 1
      for (int round = 0; round * 8 < p.tokens; ++round) {
        __syncthreads();  // no thread reads the tiles of the round before any more
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {  // registers have no index
          if (n == round) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              tiles[warp * kRoundUnits + i * 32 + lane] = product.fragment(i * kTiles + n);
            }
          }
        }
        __syncthreads();
#pragma unroll 1
        for (int unit = (threadIdx.x + turn * kRoundUnits) & (blockDim.x - 1); unit < kRoundUnits;
             unit += blockDim.x) {
          float4 sum{0.f, 0.f, 0.f, 0.f};
          if (pass > 0) {
            sum = sums[round * kRoundUnits + unit];
          }
#pragma unroll 4
          for (int w = 0; w < warps; ++w) {
            add(sum, tiles[w * kRoundUnits + unit]);
          }
          if (last) {
            const int fragment = unit / 32 * kTiles + round;
            PRODUCT::store(p, row_block * 64, fragment, lane, sum,
                           PRODUCT::scales(p, row_block * 64, fragment, lane));
          } else {
            sums[round * kRoundUnits + unit] = sum;
          }
        }
        ++turn;
      }
    }
  }
}

using MultistageKernel = void (*)(MultistageParameters);

// The kernels of version 2 by 1-bit products and by byte products, and those of version 3, each in
// a file of its own. Throw Error for a layout that there is none for.
MultistageKernel bit_multistage_kernel(const RecordMatrix& matrix, int token_tiles, DType dtype);
MultistageKernel byte_multistage_kernel(const RecordMatrix& matrix, int token_tiles, DType dtype);
MultistageKernel widened_multistage_kernel(const RecordMatrix& matrix, int token_tiles,
                                           DType dtype);

}  // namespace sparsellm::tca_bme
