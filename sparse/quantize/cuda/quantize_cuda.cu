#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>

#include "kernels/base/launch.cuh"
#include "kernels/checks.h"
#include "sparse/quantize/cuda/device_quantization.h"
#include "sparse/quantize/cuda/quantize_group.cuh"
#include "sparse/quantize/cuda/quantize_row.cuh"

namespace sparsellm {
namespace {

using quantization::DeviceF8;
using quantization::DeviceI8;
using quantization::kGroupThreads;
using quantization::kGroupWarps;
using quantization::RowBlock;
using quantization::ScaleTrials;

constexpr int kCheckThreads = 256;
constexpr int kCheckBlocks = 8;                                       // of a multiprocessor
constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();  // of a grid

// The bits from which on an element without its sign is not finite.
constexpr unsigned infinity_of(Half) { return 0x7c00; }
constexpr unsigned infinity_of(BFloat16) { return 0x7f80; }

// All threads go over the elements of w, row after row, together. `first` becomes the least number
// of one that is not finite, unless it is less.
template <class T>
__global__ void __launch_bounds__(kCheckThreads)
    first_infinite_kernel(DenseSource w, unsigned long long* first) {
  const bool contiguous = w.stride == w.columns;
  const int64_t count = w.rows * w.columns;
  const int64_t step = int64_t{gridDim.x} * kCheckThreads;
  for (int64_t i = int64_t{blockIdx.x} * kCheckThreads + threadIdx.x; i < count; i += step) {
    const int64_t gap = contiguous ? 0 : i / w.columns * (w.stride - w.columns);
    if ((w.data[i + gap] & 0x7fffu) >= infinity_of(T{})) {
      atomicMin(first, static_cast<unsigned long long>(i));
    }
  }
}

// quantize_row.cuh says what a block does. There are some 16 KiB of shared memory for i8, and 24
// for f8.
template <class Values, class T>
__global__ void __launch_bounds__(RowBlock<Values>::kThreads)
    quantize_row_kernel(DenseSource w, const __grid_constant__ ScaleTrials trials, int8_t* codes,
                        float* scales) {
  quantization::quantize_row<Values, T>(w, trials, codes, scales);
}

// quantize_group.cuh, of which four warps of a block do one each. There are 10 KiB of shared
// memory.
template <class T>
__global__ void __launch_bounds__(kGroupThreads)
    quantize_group_kernel(DenseSource w, int group, const __grid_constant__ ScaleTrials trials,
                          int8_t* codes, float* scales) {
  quantization::quantize_group<T>(w, group, trials, codes, scales);
}

template <class T>
void require_finite_weights(const Tensor& w, const ExecContext& ctx) {
  const Buffer buffer =
      Buffer::scratch(ctx, int64_t{sizeof(unsigned long long)}, "rounding of weights");
  auto* const first = static_cast<unsigned long long*>(buffer.data());
  constexpr int kAllBits = 0xff;  // of a byte
  check_cuda(cudaMemsetAsync(first, kAllBits, sizeof(*first), cuda_queue(ctx).stream));
  const int64_t needed = (w.element_count() + kCheckThreads - 1) / kCheckThreads;
  const int64_t blocks =
      std::min<int64_t>(needed, int64_t{kCheckBlocks} * cuda_state(ctx).multiprocessors);
  launch(ctx, first_infinite_kernel<T>,
         {.blocks = dim3(static_cast<unsigned>(blocks)), .threads = kCheckThreads}, dense_source(w),
         first);
  unsigned long long found = 0;
  ctx.cuda->copy(&found, first, sizeof(found), ctx.queue);
  if (found != std::numeric_limits<unsigned long long>::max()) {
    const int64_t row = static_cast<int64_t>(found) / w.size(1);
    const int64_t column = static_cast<int64_t>(found) % w.size(1);
    T weight{};
    ctx.cuda->copy(&weight, w.row<T>(row) + column, sizeof(weight), ctx.queue);
    quantization::refuse_weight(row, column, to_float(weight));
  }
}

template <class Search>
ScaleTrials trials_of() {
  ScaleTrials trials{};
  for (int i = 0; i < Search::kTrials; ++i) {
    trials.of[i] = Search::trial(i);
  }
  return trials;
}

LaunchShape shape_of(int64_t blocks, int threads) {
  require(blocks <= kMostBlocks, "{} blocks of threads to round a weight; a GPU takes {}", blocks,
          kMostBlocks);
  return {.blocks = dim3(static_cast<unsigned>(blocks)),
          .threads = dim3(static_cast<unsigned>(threads))};
}

template <class Values, class T>
void quantize_rows(const DenseSource& w, int8_t* codes, float* scales, const ExecContext& ctx) {
  launch(ctx, quantize_row_kernel<Values, T>, shape_of(w.rows, RowBlock<Values>::kThreads), w,
         trials_of<Values>(), codes, scales);
}

template <class T>
void quantize_finite(const DenseSource& w, const DeviceQuantizedMatrix& q, int64_t groups,
                     const ExecContext& ctx) {
  auto* const codes = static_cast<int8_t*>(q.codes.data());
  auto* const scales = static_cast<float*>(q.scales.data());
  switch (q.type) {
    case ValueType::i8:
      return quantize_rows<DeviceI8, T>(w, codes, scales, ctx);
    case ValueType::f8:
      return quantize_rows<DeviceF8, T>(w, codes, scales, ctx);
    case ValueType::i4:
      launch(ctx, quantize_group_kernel<T>,
             shape_of((w.rows * groups + kGroupWarps - 1) / kGroupWarps, kGroupThreads), w,
             static_cast<int>(q.group), trials_of<quantization::I4Search>(), codes, scales);
      return;
  }
  fail("there is no type {} of values", static_cast<int>(q.type));
}

}  // namespace

DeviceQuantizedMatrix quantize_cuda(const Tensor& w, ValueType type, int64_t group,
                                    ExecContext& ctx) {
  check_tensor({"quantize", "w"}, w, Elements::activation, {kAnySize, kAnySize}, ctx);
  require(type != ValueType::i4 || std::ranges::find(kValueGroups, group) != std::end(kValueGroups),
          "{} columns of i4 share a scale; expected 32, 64 or 128", group);
  const int64_t columns = w.size(1);
  const bool is_half = w.dtype() == DType::f16;
  is_half ? require_finite_weights<Half>(w, ctx) : require_finite_weights<BFloat16>(w, ctx);
  DeviceQuantizedMatrix q{.type = type,
                          .rows = w.size(0),
                          .columns = columns,
                          .group = type == ValueType::i4 ? group : columns,
                          .scales = {},
                          .codes = {}};
  const int64_t groups = type == ValueType::i4 ? (columns + group - 1) / group : 1;
  q.scales = Buffer(ctx.device, q.rows * groups * int64_t{sizeof(float)}, "an encoded weight");
  q.codes = Buffer::scratch(ctx, q.rows * columns, "rounding of weights");
  const DenseSource source = dense_source(w);
  is_half ? quantize_finite<Half>(source, q, groups, ctx)
          : quantize_finite<BFloat16>(source, q, groups, ctx);
  return q;
}

}  // namespace sparsellm
