#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/launch.cuh"
#include "kernels/base/warp.cuh"
#include "tools/bench/cold_cache.h"
#include "tools/bench/read_bandwidth_device.h"
#include "tools/bench/replay_timer.h"

namespace sparsellm {
namespace {

constexpr int kMaxThreads = 512;
constexpr int64_t kVector = sizeof(uint4);

__device__ uint32_t sum_of(uint4 v) { return v.x + v.y + v.z + v.w; }

// Sums the 32-bit words of data [vectors]. A block takes the tiles blockIdx.x, blockIdx.x +
// gridDim.x, ... of blockDim.x * kUnroll vectors, of which a thread loads every blockDim.x-th:
// kUnroll loads are in flight, and the loads of a warp are consecutive. Each warp stores its sum to
// warp_sums [gridDim.x * blockDim.x / 32], so that every load is needed. The data are read once:
// they are marked as the first to leave the caches.
template <int kUnroll>
__global__ void __launch_bounds__(kMaxThreads)
    read_sum_kernel(const uint4* data, int64_t vectors, uint32_t* warp_sums) {
  const int64_t tile = static_cast<int64_t>(blockDim.x) * kUnroll;
  uint32_t sum = 0;
  for (int64_t begin = blockIdx.x * tile; begin < vectors; begin += gridDim.x * tile) {
    const int64_t first = begin + threadIdx.x;
    if (begin + tile <= vectors) {
      uint4 v[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        v[i] = __ldcs(data + first + i * static_cast<int64_t>(blockDim.x));
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        sum += sum_of(v[i]);
      }
    } else {
      for (int64_t i = first; i < vectors; i += blockDim.x) {
        sum += sum_of(__ldcs(data + i));
      }
    }
  }
  sum = __reduce_add_sync(0xffffffffu, sum);
  if (threadIdx.x % kWarpSize == 0) {
    warp_sums[(blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) / kWarpSize] = sum;
  }
}

struct ReadShape {
  int unroll = 0;
  int threads = 0;
  int64_t blocks = 0;

  int64_t warps() const { return blocks * threads / kWarpSize; }
};

// A grid that fills the multiprocessors once leaves no block for later; with a block per tile those
// that are done first take more. Which is better depends on the size.
std::vector<ReadShape> read_shapes(int64_t vectors, int multiprocessors) {
  std::vector<ReadShape> shapes;
  for (const int unroll : {4, 8}) {
    for (const int threads : {256, 512}) {
      const int64_t tile = static_cast<int64_t>(threads) * unroll;
      const int64_t tiles = (vectors + tile - 1) / tile;
      for (const int resident_threads : {1024, 2048}) {
        const int64_t blocks = int64_t{multiprocessors} * resident_threads / threads;
        if (blocks < tiles) {
          shapes.push_back({.unroll = unroll, .threads = threads, .blocks = blocks});
        }
      }
      if (tiles <= std::numeric_limits<int32_t>::max()) {
        shapes.push_back({.unroll = unroll, .threads = threads, .blocks = tiles});
      }
    }
  }
  return shapes;
}

void enqueue_read(const ReadShape& shape, const uint4* data, int64_t vectors, uint32_t* warp_sums,
                  ExecContext& ctx) {
  launch(ctx, shape.unroll == 4 ? read_sum_kernel<4> : read_sum_kernel<8>,
         {.blocks = static_cast<unsigned>(shape.blocks),
          .threads = static_cast<unsigned>(shape.threads)},
         data, vectors, warp_sums);
}

}  // namespace

double read_bandwidth_cuda(int64_t bytes, ExecContext& ctx) {
  constexpr int64_t kChoiceRepeat = 5;
  constexpr int64_t kRepeat = 21;
  const CudaContext::State& cuda = cuda_state(ctx);
  const int64_t vectors = bytes / kVector;
  const int64_t copies = cold_copies(bytes);
  const Buffer memory =
      Buffer::scratch(ctx, checked_mul(bytes, copies, "bytes to read"), "the bytes to read");
  const auto* data = static_cast<const uint4*>(memory.data());
  check_cuda(cudaMemsetAsync(memory.data(), 1, static_cast<size_t>(memory.bytes()),
                             cuda_queue(ctx).stream));

  const auto time_shape = [&](const ReadShape& shape, int64_t repeat) {
    const Buffer warp_sums = Buffer::scratch(
        ctx, shape.warps() * static_cast<int64_t>(sizeof(uint32_t)), "the sums of the bytes read");
    auto* sums = static_cast<uint32_t*>(warp_sums.data());
    const Spread times = time_replays(
        *ctx.cuda, copies,
        [&](int64_t copy) { enqueue_read(shape, data + copy * vectors, vectors, sums, ctx); },
        repeat);
    std::vector<uint32_t> read(static_cast<size_t>(shape.warps()));
    ctx.cuda->copy(read.data(), sums, warp_sums.bytes());
    const uint32_t sum = std::accumulate(read.begin(), read.end(), uint32_t{0});
    const auto expected = static_cast<uint32_t>(vectors * 4 * 0x01010101);
    require(sum == expected, "a read of {} bytes summed to {:#x}, not {:#x}", bytes, sum, expected);
    return times.median;
  };

  ReadShape best;
  double best_seconds = std::numeric_limits<double>::infinity();
  for (const ReadShape& shape : read_shapes(vectors, cuda.multiprocessors)) {
    const double seconds = time_shape(shape, kChoiceRepeat);
    if (seconds < best_seconds) {
      best_seconds = seconds;
      best = shape;
    }
  }
  return static_cast<double>(bytes) / time_shape(best, kRepeat);
}

}  // namespace sparsellm
