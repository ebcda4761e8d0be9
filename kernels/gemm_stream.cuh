#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/base/pdl.cuh"
#include "kernels/device/async_copy.cuh"
#include "kernels/device/cuda_types.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/pipeline/arrivals.cuh"
#include "kernels/pipeline/ring.cuh"

// Products of few tokens, whose time is that of reading w once. Compiled for sm_90a alone.
namespace sparsellm::gemm_stream {

constexpr int kTileRows = 64;        // of one product of a warpgroup
constexpr int kBoxColumns = 64;      // 128 bytes, a row of a swizzled box
constexpr int kBoxAlignment = 1024;  // in shared memory
constexpr int kComputeWarps = 4;     // a warpgroup
constexpr int kComputeThreads = kComputeWarps * 32;
constexpr int kWeightWarp = kComputeWarps;     // loads w
constexpr int kTokenWarp = kComputeWarps + 1;  // loads x
constexpr int kThreads = kComputeThreads + 64;
constexpr int kMaxStages = 32;

// w is cut into row blocks, and these into steps of kRows x kColumns. Of the steps, one row block
// after the other, thread blocks have equal shares (Stream-K, Osama et al. 2023). What two or more
// of them have of a row block in common goes through `partials` to the one that has its end. Each
// begins with the last of its steps' row blocks: it waits for none but those before it, long after
// they have left what they had.
struct Parameters {
  const void* x;
  int64_t x_stride;
  void* y;
  int64_t y_stride;
  const void* bias;    // null: none
  float* partials;     // [blocks][sums of a step]
  uint32_t* arrivals;  // [blocks]; 0 before and after
  int rows;
  int columns;
  int tokens;
  int steps;      // of a row block
  int all_steps;  // of all row blocks
  int stages;     // steps in shared memory
  bool relu;
};

__device__ inline int first_step(const Parameters& p, int block) {
  return static_cast<int>(int64_t{p.all_steps} * block / static_cast<int>(gridDim.x));
}

__device__ inline void compute_threads_meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kComputeThreads) : "memory");
}

// Steps [begin, end) of a row block.
struct Segment {
  int row_block;
  int begin;
  int end;
};

struct Barriers {
  uint64_t full[kMaxStages];
  uint64_t empty[kMaxStages];
};

// N tokens; steps of 64 M rows and 64 K columns.
template <class T, class Y, int N, int M, int K>
struct Stream {
  static constexpr int kSums = N / 2;  // registers of a product
  static constexpr int kRows = M * kTileRows;
  static constexpr int kColumns = K * kBoxColumns;
  static constexpr uint32_t kWeightBox = kRows * kBoxColumns * 2;
  static constexpr uint32_t kTokenBox = N * kBoxColumns * 2;
  static constexpr uint32_t kStageBytes = K * (kWeightBox + kTokenBox);
  static constexpr int kPartial = kRows * N;
  static_assert(kTokenBox % kBoxAlignment == 0);
  using Sums = float[M][kSums];

  const Parameters& p;
  Barriers& barriers;
  uint32_t stages0;

  __device__ uint32_t weights_of(int stage) const { return stages0 + stage * kStageBytes; }
  __device__ uint32_t tokens_of(int stage) const { return weights_of(stage) + K * kWeightBox; }
  __device__ uint32_t full(int stage) const { return shared_address(&barriers.full[stage]); }
  __device__ uint32_t empty(int stage) const { return shared_address(&barriers.empty[stage]); }

  __device__ void initialize() const {
    for (int i = 0; i < p.stages; ++i) {
      barrier_init(full(i), 1 + 32);  // the thread that loads w, and the warp that loads x
      barrier_init(empty(i), kComputeWarps);
    }
    barriers_ready();
  }

  // The last one first; columns in their order.
  template <class Body>
  __device__ void for_segments(Body&& body) const {
    const int first = first_step(p, blockIdx.x);
    for (int rest = first_step(p, blockIdx.x + 1); rest > first;) {
      const int row_block = (rest - 1) / p.steps;
      const int base = row_block * p.steps;
      const int begin = max(first, base);
      body(Segment{row_block, begin - base, rest - base});
      rest = begin;
    }
  }

  // By one thread. w does not depend on the launch before.
  __device__ void load_weights(const CUtensorMap& map) const {
    const uint64_t policy = evict_first();
    Ring ring{p.stages, 1};
    for_segments([&](const Segment& segment) {
      for (int step = segment.begin; step < segment.end; ++step) {
        barrier_wait(empty(ring.stage), ring.parity);
        barrier_expect(full(ring.stage), K * kWeightBox);
#pragma unroll
        for (int k = 0; k < K; ++k) {
          bulk_load_box(weights_of(ring.stage) + k * kWeightBox, &map,
                        step * kColumns + k * kBoxColumns, segment.row_block * kRows,
                        full(ring.stage), policy);
        }
        ring.advance();
      }
    });
  }

  // By a warp, and not through the queue of bulk copies, where they would come after the weights.
  // Tokens after the last get no x: what is there instead has columns of its own in every product.
  __device__ void load_tokens() const {
    constexpr int kElements = 8;  // of 16 bytes
    constexpr int kRowParts = kBoxColumns / kElements;
    constexpr int kTokensAtOnce = 32 / kRowParts;
    const int lane = threadIdx.x % 32;
    const int part = lane % kRowParts;
    const T* const x = static_cast<const T*>(p.x) + lane / kRowParts * p.x_stride;
    Ring ring{p.stages, 1};
    wait_on_dependencies();
    for_segments([&](const Segment& segment) {
      for (int step = segment.begin; step < segment.end; ++step) {
        barrier_wait(empty(ring.stage), ring.parity);
#pragma unroll
        for (int k = 0; k < K; ++k) {
          const int at = step * kColumns + k * kBoxColumns + part * kElements;
          const int bytes = at < p.columns ? 16 : 0;
          const T* const from = bytes == 0 ? x : x + at;
#pragma unroll
          for (int t = 0; t < N; t += kTokensAtOnce) {
            const int token = t + lane / kRowParts;
            if (token < p.tokens) {
              copy16(tokens_of(ring.stage) + k * kTokenBox + token * (kBoxColumns * 2) +
                         ((part ^ token % 8) << 4),
                     from + t * p.x_stride, bytes);
            }
          }
        }
        arrive_with_copies(full(ring.stage));
        ring.advance();
      }
    });
  }

  __device__ void multiply(Sums& sums, int stage) const {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const uint32_t a = swizzled_operand(weights_of(stage) + k * kWeightBox +
                                            m * (kTileRows * kBoxColumns * 2));
        const uint32_t b = swizzled_operand(tokens_of(stage) + k * kTokenBox);
#pragma unroll
        for (int part = 0; part < kBoxColumns / 16; ++part) {
          wgmma<T>(sums[m], a + 2 * part, b + 2 * part);
        }
      }
    }
    wgmma_commit();
  }

  // By the warpgroup, as what follows.
  __device__ void compute() const {
    Ring ring{p.stages, 0};
    int before = -1;  // the stage whose products may still run
    const auto release = [&] {
      if (before >= 0 && threadIdx.x % 32 == 0) {
        barrier_arrive(empty(before));
      }
    };
    for_segments([&](const Segment& segment) {
      Sums sums;
      for_all(sums, [](float& sum, int) { sum = 0.0f; });
#pragma unroll 1
      for (int step = segment.begin; step < segment.end; ++step) {
        barrier_wait(full(ring.stage), ring.parity);
        shared_stores_done();
        multiply(sums, ring.stage);
        wgmma_wait<1>();
        release();
        before = ring.stage;
        ring.advance();
      }
      wgmma_wait<0>();
      release();
      before = -1;
      finish(segment, sums);
    });
  }

  __device__ void finish(const Segment& segment, Sums& sums) const {
    if (segment.end < p.steps) {
      leave(sums);
    } else {
      collect(sums, segment.begin);
      store(sums, segment.row_block);
    }
  }

  template <class Body>
  __device__ static void for_all(Sums& sums, Body&& body) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        body(sums[m][i], (m * kSums + i) * kComputeThreads);
      }
    }
  }
  __device__ float* partial_of(int block) const {
    return p.partials + int64_t{block} * kPartial + threadIdx.x;
  }
  // For the block that has the end of the row block.
  __device__ void leave(Sums& sums) const {
    float* const to = partial_of(blockIdx.x);
    for_all(sums, [&](float& sum, int at) { __stcg(to + at, sum); });
    compute_threads_meet();
    if (threadIdx.x == 0) {
      set_arrived(p.arrivals + blockIdx.x);
    }
  }
  // What the blocks before this one have of its first row block, the nearest first.
  __device__ void collect(Sums& sums, int missing) const {
    for (int block = static_cast<int>(blockIdx.x) - 1; missing > 0; --block) {
      missing -= first_step(p, block + 1) - first_step(p, block);
      if (threadIdx.x == 0) {
        wait_arrived(p.arrivals + block);
        p.arrivals[block] = 0;
      }
      compute_threads_meet();
      const float* const from = partial_of(block);
      for_all(sums, [&](float& sum, int at) { sum += __ldcg(from + at); });
    }
  }

  __device__ void store(const Sums& sums, int row_block) const {
    const int lane = threadIdx.x % 32;
    const int first_row = row_block * kRows + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + m * kTileRows + half * 8;
        if (row >= p.rows) {
          continue;
        }
        const float bias = p.bias == nullptr ? 0.0f : f32_of(static_cast<const T*>(p.bias)[row]);
#pragma unroll
        for (int i = 0; i < kSums / 2; ++i) {
          const int token = i / 2 * 8 + lane % 4 * 2 + i % 2;
          const float sum = sums[m][i / 2 * 4 + half * 2 + i % 2] + bias;
          if (token < p.tokens) {
            static_cast<Y*>(p.y)[token * p.y_stride + row] =
                from_f32<Y>(p.relu && sum < 0.0f ? 0.0f : sum);  // NaN stays
          }
        }
      }
    }
  }
};

template <class T, class Y, int N, int M, int K>
__global__ void __launch_bounds__(kThreads)
    gemm_stream_kernel(const __grid_constant__ Parameters p,
                       const __grid_constant__ CUtensorMap w) {
  extern __shared__ uint8_t stages[];
  __shared__ Barriers barriers;
  const Stream<T, Y, N, M, K> stream{
      p, barriers, (shared_address(stages) + kBoxAlignment - 1) / kBoxAlignment * kBoxAlignment};
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == kWeightWarp * 32) {
    prefetch_map(&w);
    stream.initialize();
  }
  __syncthreads();
  launch_dependents();
  if (threadIdx.x == kWeightWarp * 32) {
    stream.load_weights(w);
  } else if (warp == kTokenWarp) {
    stream.load_tokens();
  } else if (warp < kComputeWarps) {
    stream.compute();
  }
}

}  // namespace sparsellm::gemm_stream
