#include <cstdint>

#include "kernels/base/launch.cuh"
#include "kernels/base/pdl.cuh"
#include "sparse/activation/cuda/vote_products.cuh"
#include "sparse/activation/row_pieces.cuh"
#include "sparse/activation/sign_predictor_device.h"
#include "sparse/activation/token_votes_cuda.h"

namespace sparsellm::token_votes {
namespace {

constexpr int kTokenWarps = 16;
constexpr int kTokenThreads = kTokenWarps * kWarpSize;
constexpr int kMaxTiles = static_cast<int>(kMaxVoteColumns) / kTileElements;
static_assert(kMaxVoteColumns % kTileElements == 0);

static_assert(kGroupTokens == vote_products::kTokens);
static_assert(kSegmentWords == vote_products::kSegmentWords);
static_assert(kSegmentBytes == vote_products::kSegmentPieces * sizeof(uint4));

template <class T>
struct VoteBytes {
  MatrixRows<T> x;
  int columns;
  int words;
  int segments;
  bool weighted;  // or each vote counts 1
  uint32_t* votes;
  int2* totals;
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
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  while (count > kWarpSize) {
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
  return sum_of_lanes(lane < count ? sums[lane] : 0.0f);
}

template <class T>
__device__ float sum_squares(const VoteBytes<T>& p, const T* row, float* sums, float* others) {
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

// Whether those of x are that this thread looks at.
template <class T>
__device__ bool all_finite(const VoteBytes<T>& p, const T* row) {
  bool finite = true;
  for (int piece = threadIdx.x; piece * kPieceElements < p.columns; piece += kTokenThreads) {
    const int column = piece * kPieceElements;
    float values[kPieceElements];
    unpack_piece<T>(load_piece(row + column, p.columns - column, p.x.aligned), values);
#pragma unroll
    for (const float value : values) {
      finite = finite && isfinite(value);
    }
  }
  return finite;
}

// A 4 x 4 matrix of bytes, a row in each of four neighbouring lanes, becomes its transpose. By
// whole warps.
__device__ uint32_t transpose_bytes(uint32_t row) {
  const uint32_t beside = __shfl_xor_sync(~0u, row, 1);
  row = __byte_perm(row, beside, threadIdx.x % 2 == 0 ? 0x6240 : 0x3715);
  const uint32_t beyond = __shfl_xor_sync(~0u, row, 2);
  return __byte_perm(row, beyond, threadIdx.x / 2 % 2 == 0 ? 0x5410 : 0x3276);
}

// A block has a token, in two passes over x, of which the second finds it in the L1: the sum of the
// squares, for which a warp adds up 256 elements (of votes that count 1: whether x is finite), and
// then 8 elements a thread, whose signs are a
// byte of a sign word. The four threads of a word exchange votes, so that each stores those of one
// bit of the four bytes together. 17 KiB of shared memory, for the sums of the most columns.
template <class T>
__global__ void __launch_bounds__(kTokenThreads) write_votes_kernel(VoteBytes<T> p) {
  using namespace vote_products;
  __shared__ float sums[kMaxTiles];
  __shared__ float others[(kMaxTiles + kWarpSize - 1) / kWarpSize];
  __shared__ int total;
  __shared__ int balance;
  launch_dependents();
  if (threadIdx.x == 0) {
    total = 0;
    balance = 0;
  }
  wait_on_dependencies();
  const int token = static_cast<int>(blockIdx.x);
  const T* const row = p.x.row(token);
  float c = 1.0f;
  bool has_votes = false;
  if (p.weighted) {
    const float sum = sum_squares(p, row, sums, others);
    c = __fdiv_rn(5.0f, __fsqrt_rn(__fdiv_rn(sum, static_cast<float>(p.columns))));
    has_votes = c > 0.0f && isfinite(c);
  } else {
    has_votes = __syncthreads_and(all_finite(p, row)) != 0;
  }
  constexpr float kLargest = 15.0f;
  const int64_t first_segment = int64_t{token / kTokens} * p.segments;
  const int bytes = p.words * 4;
  int counted = 0;
  int counted_signed = 0;
  for (int first = 0; first < bytes; first += kTokenThreads) {
    const int byte = first + static_cast<int>(threadIdx.x);
    const int column = byte * kPieceElements;
    float values[kPieceElements];
    unpack_piece<T>(load_piece(row + column, p.columns - column, p.x.aligned), values);
    uint32_t nibbles[kNibbles] = {};
#pragma unroll
    for (int bit = 0; bit < kPieceElements; ++bit) {
      const float value = has_votes ? values[bit] : 0.0f;
      const int weight =
          p.weighted ? __float2int_rn(fminf(__fmul_rn(fabsf(value), c), kLargest)) : 1;
      const int q = value > 0.0f ? weight : value < 0.0f ? -weight : 0;
      counted += abs(q);
      counted_signed += q;
      nibbles[bit / 4] |= uint32_t{vote_byte(q, bit)} << bit % 4 * 8;
    }
    const int word = byte / 4 % kSegmentWords;
    const int64_t segment = first_segment + byte / 4 / kSegmentWords;
    const int lane = token % kTokens * 4 + word / kLaneWords;  // that multiplies by them
#pragma unroll
    for (int nibble = 0; nibble < kNibbles; ++nibble) {
      const uint32_t of_bit = transpose_bytes(nibbles[nibble]);
      if (byte < bytes) {
        p.votes[vote_piece(segment, word % kLaneWords, nibble, lane) * 4 + byte % 4] = of_bit;
      }
    }
  }
  counted = __reduce_add_sync(~0u, counted);
  counted_signed = __reduce_add_sync(~0u, counted_signed);
  if (threadIdx.x % kWarpSize == 0) {
    atomicAdd(&total, counted);
    atomicAdd(&balance, counted_signed);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    p.totals[token] = make_int2(total, balance);
  }
}

}  // namespace

void write_bytes_cuda(const Tensor& x, Votes how, const Tensor& votes, const Tensor& totals,
                      ExecContext& ctx) {
  visit_activation(x.dtype(), [&]<class T>(T) {
    launch(ctx, write_votes_kernel<T>,
           {.blocks = static_cast<unsigned>(x.size(0)),
            .threads = kTokenThreads,
            .shared_bytes = 0,
            .pdl = true},
           VoteBytes<T>{.x = matrix_rows<T>(x),
                        .columns = static_cast<int>(x.size(1)),
                        .words = static_cast<int>(sign_word_count(x.size(1))),
                        .segments = static_cast<int>(segment_count(x.size(1))),
                        .weighted = how == Votes::weighted,
                        .votes = static_cast<uint32_t*>(votes.raw()),
                        .totals = static_cast<int2*>(totals.raw())});
  });
}

}  // namespace sparsellm::token_votes
