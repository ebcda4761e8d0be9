#include <algorithm>
#include <bit>

#include "kernels/base/cuda_graph.h"
#include "kernels/base/launch.cuh"
#include "kernels/counter_random.h"
#include "kernels/device/cuda_types.cuh"
#include "kernels/norm.h"
#include "kernels/tune/measure.cuh"

namespace sparsellm {
namespace {

constexpr int kThreads = 256;
constexpr int kRepetitions = 7;
// Of the norms between calls: a thread block takes each row.
constexpr int64_t kShortFeatures = 4096;
constexpr int64_t kLongFeatures = 32768;
constexpr int64_t kMaxNormTokens = 32;

// Enough blocks for any device; the kernels below go over n elements in strides of the grid.
LaunchShape shape_for(int64_t n) {
  constexpr int64_t kMaxBlocks = 4096;
  return {
      .blocks = dim3(static_cast<unsigned>(std::min((n + kThreads - 1) / kThreads, kMaxBlocks))),
      .threads = kThreads};
}

__device__ int64_t first_element() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ int64_t element_step() { return int64_t{gridDim.x} * blockDim.x; }

template <class T>
__global__ void tune_random_kernel(T* x, int64_t n) {
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const uint64_t bits = mix_bits(static_cast<uint64_t>(i + 1) * kRandomStep);
    x[i] = from_f32<T>(static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f);
  }
}

template <class T>
struct Rows {
  const T* data;
  int64_t stride;
};

// Each thread keeps the largest |a - b| and |a| of its elements, each warp those of its threads,
// and its first lane those of the device. The bits of f32 that are not negative are ordered as
// their values, with NaN on top.
template <class T>
__global__ void tune_compare_kernel(Rows<T> a, Rows<T> b, int64_t columns, int64_t n,
                                    unsigned* largest) {
  unsigned difference = 0;
  unsigned value = 0;
  for (int64_t i = first_element(); i < n; i += element_step()) {
    const int64_t row = i / columns;
    const int64_t column = i - row * columns;
    const float expected = f32_of(a.data[row * a.stride + column]);
    const float got = f32_of(b.data[row * b.stride + column]);
    difference = max(difference, __float_as_uint(fabsf(expected - got)));
    value = max(value, __float_as_uint(fabsf(expected)));
  }
  // No thread has left: all lanes of the warp are here.
  difference = __reduce_max_sync(0xffffffffu, difference);
  value = __reduce_max_sync(0xffffffffu, value);
  if (threadIdx.x % 32 == 0) {
    atomicMax(&largest[0], difference);
    atomicMax(&largest[1], value);
  }
}

int64_t l2_bytes(int index) {
  int bytes = 0;
  check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, index));
  return bytes;
}

}  // namespace

void fill_operand(const Tensor& x, ExecContext& ctx) {
  visit_activation(x.dtype(), [&]<class T>(T) {
    launch(ctx, tune_random_kernel<T>, shape_for(x.element_count()), static_cast<T*>(x.raw()),
           x.element_count());
  });
}

Comparison::Comparison(ExecContext& ctx)
    : ctx_(ctx), result_(Buffer::scratch(ctx, 2 * sizeof(unsigned), "a comparison")) {
  reset();
}

void Comparison::reset() {
  check_cuda(cudaMemsetAsync(result_.data(), 0, static_cast<size_t>(result_.bytes()),
                             cuda_queue(ctx_).stream));
}

void Comparison::add(const Tensor& a, const Tensor& b) {
  visit_floating(a.dtype(), [&]<class T>(T) {
    const Rows<T> a_rows{static_cast<const T*>(a.raw()), a.row_stride()};
    const Rows<T> b_rows{static_cast<const T*>(b.raw()), b.row_stride()};
    launch(ctx_, tune_compare_kernel<T>, shape_for(a.element_count()), a_rows, b_rows, a.size(1),
           a.element_count(), static_cast<unsigned*>(result_.data()));
  });
}

TuneMeter::Largest Comparison::take() {
  unsigned bits[2];
  ctx_.cuda->copy(bits, result_.data(), sizeof(bits), ctx_.queue);
  reset();
  return {.difference = std::bit_cast<float>(bits[0]), .value = std::bit_cast<float>(bits[1])};
}

CallTimer::CallTimer(ExecContext& ctx)
    : ctx_(ctx),
      flushed_(Buffer::scratch(ctx, 2 * l2_bytes(ctx.device.index), "the flush of the L2")),
      residual_(allocate_scratch(ctx, DType::f32, {kMaxNormTokens, kLongFeatures}, "a norm")),
      norm_weight_(allocate_scratch(ctx, DType::f16, {kLongFeatures}, "a norm")),
      normalized_(allocate_scratch(ctx, DType::f16, {kMaxNormTokens, kLongFeatures}, "a norm")) {
  for (int i = 0; i < kRepetitions; ++i) {
    before_.emplace_back(*ctx.cuda, CudaEvent::Timing::yes, ctx.queue);
    after_.emplace_back(*ctx.cuda, CudaEvent::Timing::yes, ctx.queue);
  }
}

void CallTimer::flush() {
  check_cuda(cudaMemsetAsync(flushed_.data(), 0, static_cast<size_t>(flushed_.bytes()),
                             cuda_queue(ctx_).stream));
}

void CallTimer::norm(int64_t tokens, int64_t features) {
  const int64_t rows = std::min(tokens, kMaxNormTokens);
  rms_norm(residual_.view.rows(0, rows).columns(0, features),
           {.weight = norm_weight_.view.rows(0, features), .bias = {}, .epsilon = 1.0f},
           normalized_.view.rows(0, rows).columns(0, features), ctx_);
}

void CallTimer::run(const std::function<void()>& work) {
  try {
    const CudaGraph graph(*ctx_.cuda, work);
    graph.launch();
    ctx_.cuda->synchronize();  // before the graph is destroyed
  } catch (const CaptureFailed&) {
    work();
  }
}

std::optional<double> CallTimer::median(const TuneMeter::Call& call, double best) {
  constexpr double kHopeless = 1.5;
  const auto seconds = [&](int index) {
    after_[index].synchronize();
    return after_[index].seconds_since(before_[index]);
  };
  flush();
  before_[0].record();
  call.enqueue();
  after_[0].record();
  if (seconds(0) > kHopeless * best) {
    return std::nullopt;
  }
  const bool flush_always = call.bytes_in_turn < 3 * l2_bytes(ctx_.device.index);
  // Several in a row, as in a step. Flushes would stand between them.
  const int calls = flush_always ? 1 : 4;
  const bool among_norms = ctx_.launches == Launches::overlapping;
  run([&] {
    flush();
    for (int i = 0; i < kRepetitions; ++i) {
      if (flush_always && i > 0) {
        flush();
      }
      before_[i].record();
      for (int j = 0; j < calls; ++j) {
        if (among_norms) {
          norm(call.tokens, j % 2 == 0 ? kLongFeatures : kShortFeatures);
        }
        call.enqueue();
      }
      if (among_norms) {
        norm(call.tokens, kShortFeatures);
      }
      after_[i].record();
    }
  });
  std::vector<double> times;
  for (int i = 0; i < kRepetitions; ++i) {
    times.push_back(seconds(i) / calls);
  }
  std::nth_element(times.begin(), times.begin() + kRepetitions / 2, times.end());
  return times[kRepetitions / 2];
}

}  // namespace sparsellm
