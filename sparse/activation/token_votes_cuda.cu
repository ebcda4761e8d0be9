#include <cstdint>

#include "kernels/base/launch.cuh"
#include "kernels/base/pdl.cuh"
#include "sparse/activation/row_pieces.cuh"
#include "sparse/activation/sign_predictor_device.h"
#include "sparse/activation/token_votes.h"
#include "sparse/activation/token_votes_cuda.h"

namespace sparsellm::token_votes {
namespace {

constexpr int kTokenWarps = 16;
constexpr int kTokenThreads = kTokenWarps * kWarpSize;
constexpr int kMaxTiles = static_cast<int>(kMaxVoteColumns) / kTileElements;
constexpr int kMaxBits = vote_kernels::kMaxPlanes;
static_assert(kMaxVoteColumns % kTileElements == 0);

template <class T>
struct Packing {
  MatrixRows<T> x;
  int columns;
  int planes;       // 1: each vote counts 1
  uint8_t* bytes;   // of words, little-endian: byte i of a plane is elements [8 * i, + 8)
  int plane_bytes;  // the signs come first, as a plane of their own
  int32_t* totals;
};

// In pairs of neighbours, over the lanes; every lane gets it.
__device__ float sum_of_lanes(float sum) {
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, distance));
  }
  return sum;
}

// The same over sums[count], by the whole block; `others` has room for a sum of each 32.
__device__ float sum_of_tiles(float* sums, float* others, int count) {
  if (count == 0) {
    return 0.0f;
  }
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  while (count > 1) {
    const int groups = (count + kWarpSize - 1) / kWarpSize;
    for (int group = warp; group < groups; group += kTokenWarps) {
      const int i = group * kWarpSize + lane;
      const float sum = sum_of_lanes(i < count ? sums[i] : 0.0f);
      if (lane == 0) {
        others[group] = sum;
      }
    }
    __syncthreads();
    float* const added_up = sums;
    sums = others;
    others = added_up;
    count = groups;
  }
  return sums[0];
}

template <class T>
__device__ float sum_squares(const Packing<T>& p, const T* row, float* sums, float* others) {
  const int lane = threadIdx.x % kWarpSize;
  const int tiles = (p.columns + kTileElements - 1) / kTileElements;
  for (int tile = threadIdx.x / kWarpSize; tile < tiles; tile += kTokenWarps) {
    const int column = tile * kTileElements + lane * kPieceElements;
    float squares[kPieceElements];
    unpack_piece<T>(load_piece(row + column, p.columns - column, p.x.aligned), squares);
#pragma unroll
    for (float& square : squares) {
      square = __fmul_rn(square, square);
    }
#pragma unroll
    for (int count = kPieceElements / 2; count > 0; count /= 2) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        squares[i] = __fadd_rn(squares[2 * i], squares[2 * i + 1]);
      }
    }
    const float sum = sum_of_lanes(squares[0]);
    if (lane == 0) {
      sums[tile] = sum;
    }
  }
  __syncthreads();
  return sum_of_tiles(sums, others, tiles);
}

// A block packs the votes of a token, in two passes over x, of which the second finds it in the L1:
// the sum of the squares, for which a warp adds up 256 elements, and then 8 elements a thread,
// whose bits are a byte of each plane. 17 KiB of shared memory, for the sums of the most columns.
template <class T>
__global__ void __launch_bounds__(kTokenThreads) pack_votes_kernel(Packing<T> p) {
  __shared__ float sums[kMaxTiles];
  __shared__ float others[(kMaxTiles + kWarpSize - 1) / kWarpSize];
  __shared__ int total;
  launch_dependents();
  if (threadIdx.x == 0) {
    total = 0;
  }
  wait_on_dependencies();
  const T* const row = p.x.row(blockIdx.x);
  const float sum = sum_squares(p, row, sums, others);
  constexpr float kLargest = 15.0f;
  const float c = __fdiv_rn(5.0f, __fsqrt_rn(__fdiv_rn(sum, static_cast<float>(p.columns))));
  const bool has_votes = c > 0.0f && isfinite(c);
  const float scale = has_votes ? c : 0.0f;
  uint8_t* const bytes = p.bytes + int64_t{blockIdx.x} * (1 + p.planes) * p.plane_bytes;
  unsigned counted = 0;
  for (int byte = threadIdx.x; byte < p.plane_bytes; byte += kTokenThreads) {
    const int column = byte * kPieceElements;
    float values[kPieceElements];
    unpack_piece<T>(load_piece(row + column, p.columns - column, p.x.aligned), values);
    unsigned signs = 0;
    unsigned planes[kMaxBits] = {};
#pragma unroll
    for (int i = 0; i < kPieceElements; ++i) {
      const float value = has_votes ? values[i] : 0.0f;
      const unsigned count = p.planes == 1
                                 ? (value != 0.0f ? 1u : 0u)
                                 : __float2uint_rn(fminf(__fmul_rn(fabsf(value), scale), kLargest));
      counted += count;
      signs |= (__float_as_uint(value) >> 31) << i;
#pragma unroll
      for (int plane = 0; plane < kMaxBits; ++plane) {
        planes[plane] |= (count >> plane & 1u) << i;
      }
    }
    bytes[byte] = static_cast<uint8_t>(signs);
#pragma unroll
    for (int plane = 0; plane < kMaxBits; ++plane) {
      if (plane < p.planes) {
        bytes[(1 + plane) * p.plane_bytes + byte] = static_cast<uint8_t>(planes[plane]);
      }
    }
  }
  const unsigned counted_by_warp = __reduce_add_sync(~0u, counted);
  if (threadIdx.x % kWarpSize == 0) {
    atomicAdd(&total, static_cast<int>(counted_by_warp));
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    p.totals[blockIdx.x] = total;
  }
}

}  // namespace

void pack_cuda(const Tensor& x, Votes votes, const Tensor& words, const Tensor& totals,
               ExecContext& ctx) {
  const int planes = planes_of(votes);
  const int64_t plane_words = words_of(x.size(1), votes) / (1 + planes);
  visit_activation(x.dtype(), [&]<class T>(T) {
    launch(ctx, pack_votes_kernel<T>,
           {.blocks = static_cast<unsigned>(x.size(0)),
            .threads = kTokenThreads,
            .shared_bytes = 0,
            .pdl = true},
           Packing<T>{.x = matrix_rows<T>(x),
                      .columns = static_cast<int>(x.size(1)),
                      .planes = planes,
                      .bytes = static_cast<uint8_t*>(words.raw()),
                      .plane_bytes = static_cast<int>(plane_words * sizeof(uint32_t)),
                      .totals = totals.data<int32_t>()});
  });
}

}  // namespace sparsellm::token_votes
