#include <algorithm>
#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/base/workspace.h"
#include "kernels/device/elementwise.cuh"
#include "kernels/device/neuron_tally.cuh"
#include "sparse/activation/active_rows_device.h"
#include "sparse/activation/cuda_workspace.h"
#include "sparse/activation/row_pieces.cuh"

namespace sparsellm {
namespace {

constexpr int kRangeWarps = 8;
constexpr int kRangeThreads = kRangeWarps * kWarpSize;
constexpr int kRangeTokens = 8;                 // that share the loads of a row
constexpr int kListedAtOnce = 4;                // which a warp loads before it adds the first
static_assert(kTileElements == kRangeThreads);  // a thread adds up the warps' sums of a column

template <class T>
struct DownRows {
  MatrixRows<T> h;
  MatrixRows<T> wt;
  float* partials;  // [ranges, tokens, out]
  int64_t neurons;
  int tokens;
  int out;
  unsigned strips;  // of kTileElements outputs
  TallyRows tally;  // of the tokens of h
};

template <int kTokens>
struct RangeMemory {
  float factors[kTokens][kRangeNeurons];
  alignas(16) float sums[kRangeWarps][kTileElements];
  uint16_t listed[kRangeWarps][kRangeNeurons / kRangeWarps];
};

// The neurons of this warp, every kRangeWarps-th 32 of the range, that are not zero for all tokens,
// in ascending order; returns how many.
template <int kTokens>
__device__ int list_neurons(RangeMemory<kTokens>& memory) {
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  int count = 0;
  for (int neuron = threadIdx.x; neuron < kRangeNeurons; neuron += kRangeThreads) {
    bool is_wanted = false;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      is_wanted |= memory.factors[t][neuron] != 0.0f;
    }
    const unsigned wanted = __ballot_sync(~0u, is_wanted);
    if (is_wanted) {
      memory.listed[warp][count + __popc(wanted & ((1u << lane) - 1))] =
          static_cast<uint16_t>(neuron);
    }
    count += __popc(wanted);
  }
  __syncwarp();
  return count;
}

// Counts the neurons of a range for tokens [first_token, first_token + tokens), whose factors these
// are.
template <int kTokens>
__device__ void count_range(const RangeMemory<kTokens>& memory, const TallyRows& tally,
                            int first_token, int tokens, int64_t first_neuron, int64_t neurons) {
  const int thread = static_cast<int>(threadIdx.x);
  const int rows =
      first_neuron == 0 && thread < tokens && tally.counts(first_token + thread) ? 1 : 0;
  int skipped = 0;
  int active = 0;
  for (int i = thread; i < tokens * kRangeNeurons; i += kRangeThreads) {
    const int t = i / kRangeNeurons;
    const int neuron = i % kRangeNeurons;
    if (neuron < neurons && tally.counts(first_token + t)) {
      skipped += tally.skips(first_token + t, first_neuron + neuron) ? 1 : 0;
      active += memory.factors[t][neuron] != 0.0f ? 1 : 0;
    }
  }
  add_to_counters(tally.counters, rows, skipped, active);
}

// A block has a range of neurons and a strip of outputs: each warp adds up its neurons' rows, each
// times its h, neuron by neuron; then the sums of the warps are added up. A token's factors that
// are 0 are left out, so that its sums are the same whatever rows the others need. The block of the
// first strip counts the range. Up to 25 KiB of shared memory.
template <int kTokens, class T>
__global__ void __launch_bounds__(kRangeThreads) down_rows_kernel(DownRows<T> p) {
  __shared__ RangeMemory<kTokens> memory;
  launch_dependents();
  wait_on_dependencies();
  const int warp = threadIdx.x / kWarpSize;
  const int64_t range = blockIdx.x / p.strips;
  const int strip = static_cast<int>(blockIdx.x % p.strips) * kTileElements;
  const int64_t first_neuron = range * kRangeNeurons;
  const int64_t neurons = p.neurons - first_neuron;
  const int column = strip + static_cast<int>(threadIdx.x) % kWarpSize * kPieceElements;
  for (int first = 0; first < p.tokens; first += kTokens) {
    const int tokens = min(p.tokens - first, kTokens);
    for (int i = threadIdx.x; i < kTokens * kRangeNeurons; i += kRangeThreads) {
      const int t = i / kRangeNeurons;
      const int neuron = i % kRangeNeurons;
      memory.factors[t][neuron] =
          t < tokens && neuron < neurons ? f32_of(p.h.row(first + t)[first_neuron + neuron]) : 0.0f;
    }
    __syncthreads();
    if (strip == 0 && p.tally.counters != nullptr) {
      count_range(memory, p.tally, first, tokens, first_neuron, neurons);
    }
    const int count = list_neurons(memory);
    const uint16_t* const listed = memory.listed[warp];
    float sums[kTokens][kPieceElements] = {};
    for (int begin = 0; begin < count; begin += kListedAtOnce) {
      uint4 pieces[kListedAtOnce];
#pragma unroll
      for (int i = 0; i < kListedAtOnce; ++i) {
        if (begin + i < count) {
          pieces[i] = load_piece(p.wt.row(first_neuron + listed[begin + i]) + column,
                                 p.out - column, p.wt.aligned);
        }
      }
#pragma unroll
      for (int i = 0; i < kListedAtOnce; ++i) {
        if (begin + i >= count) {
          break;
        }
        const int neuron = listed[begin + i];
        float weights[kPieceElements];
        unpack_piece<T>(pieces[i], weights);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float factor = memory.factors[t][neuron];
          if (factor != 0.0f) {
#pragma unroll
            for (int j = 0; j < kPieceElements; ++j) {
              sums[t][j] = fmaf(factor, weights[j], sums[t][j]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t >= tokens) {
        break;
      }
      store_vector(sums[t], memory.sums[warp] + column - strip);
      __syncthreads();
      float sum = 0.0f;
#pragma unroll
      for (int other = 0; other < kRangeWarps; ++other) {
        sum += memory.sums[other][threadIdx.x];
      }
      const int out = strip + static_cast<int>(threadIdx.x);
      if (out < p.out) {
        p.partials[(range * p.tokens + first + t) * p.out + out] = sum;
      }
      __syncthreads();
    }
  }
}

// y = the sums of the ranges, one after the other, + bias. blockIdx.x is the token.
template <class T>
__global__ void add_ranges_kernel(const float* partials, int64_t ranges, BiasValues bias, T* y,
                                  int64_t y_stride, int out) {
  launch_dependents();
  wait_on_dependencies();
  const int64_t range_stride = int64_t{gridDim.x} * out;
  for (int i = elementwise_first(); i < out; i += elementwise_step()) {
    const float* const from = partials + int64_t{blockIdx.x} * out + i;
    float sum = 0.0f;
#pragma unroll 8
    for (int64_t range = 0; range < ranges; ++range) {
      sum += from[range * range_stride];
    }
    y[blockIdx.x * y_stride + i] = from_f32<T>(sum + bias.at(i));
  }
}

}  // namespace

void down_rows_cuda(const Tensor& h, const RowAccess& wt, const Tensor& bias,
                    const NeuronTally& tally, Tensor y, ExecContext& ctx) {
  const Tensor& weight = dynamic_cast<const DenseRows&>(wt).weight();
  const int64_t ranges = range_count(wt.rows());
  const int64_t strips = (wt.columns() + kTileElements - 1) / kTileElements;
  require(wt.columns() <= kMaxRowElements && checked_mul(ranges, strips, "blocks") <= INT32_MAX,
          "down_rows: a weight {} is too large", weight.shape_string());
  visit_activation(h.dtype(), [&]<class T>(T) {
    for (int64_t first = 0; first < h.size(0); first += kPartialTokens) {
      const int64_t tokens = std::min(h.size(0) - first, kPartialTokens);
      auto scratch = ctx.workspace.scope();
      const Tensor partials = scratch.tensor(DType::f32, {ranges, tokens, wt.columns()});
      const Tensor to = y.rows(first, tokens);
      launch(ctx, tokens == 1 ? down_rows_kernel<1, T> : down_rows_kernel<kRangeTokens, T>,
             {.blocks = static_cast<unsigned>(ranges * strips),
              .threads = kRangeThreads,
              .shared_bytes = 0,
              .pdl = true},
             DownRows<T>{.h = matrix_rows<T>(h.rows(first, tokens)),
                         .wt = matrix_rows<T>(weight),
                         .partials = partials.data<float>(),
                         .neurons = wt.rows(),
                         .tokens = static_cast<int>(tokens),
                         .out = static_cast<int>(wt.columns()),
                         .strips = static_cast<unsigned>(strips),
                         .tally = TallyRows(tally, first, tokens)});
      launch(ctx, add_ranges_kernel<T>, elementwise_shape(tokens, wt.columns(), true),
             partials.data<float>(), ranges, BiasValues(bias), static_cast<T*>(to.raw()),
             to.row_stride(), static_cast<int>(wt.columns()));
    }
  });
}

}  // namespace sparsellm
