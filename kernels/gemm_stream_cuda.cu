#include <algorithm>

#include "kernels/base/launch.cuh"
#include "kernels/device/tensor_map.h"
#include "kernels/gemm_stream.cuh"
#include "kernels/gemm_stream_cuda.h"

namespace sparsellm {
namespace {

using gemm_stream::Parameters;
using gemm_stream::Stream;
using Kernel = void (*)(Parameters, CUtensorMap);

constexpr int64_t kMaxTokens = 32;
// That a multiprocessor has, and what it keeps for itself of each thread block.
constexpr int kMultiprocessorBytes = 228 * 1024;
constexpr int kReservedBytes = 1024;
constexpr int kStaticBytes = 1024;  // at most
static_assert(sizeof(gemm_stream::Barriers) <= kStaticBytes);
constexpr int64_t kMinSteps = 4;  // of a thread block: fewer are not worth adding its part

struct Tile {
  Kernel kernel;
  int tokens;
  int rows;
  int columns;
  int stage_bytes;
};

// More rows at once where x would be too much beside w.
template <class T, class Y, int N, int M, int K>
Tile tile() {
  using S = Stream<T, Y, N, M, K>;
  static_assert(CudaQueue::kCounters * S::kPartial * int64_t{sizeof(float)} <=
                CudaContext::kWorkspaceBytes);  // the parts of all thread blocks
  return {.kernel = &gemm_stream::gemm_stream_kernel<T, Y, N, M, K>,
          .tokens = N,
          .rows = S::kRows,
          .columns = S::kColumns,
          .stage_bytes = static_cast<int>(S::kStageBytes)};
}
template <class T, class Y>
Tile tile_for(int64_t tokens) {
  return tokens <= 8    ? tile<T, Y, 8, 1, 2>()
         : tokens <= 16 ? tile<T, Y, 16, 1, 2>()
                        : tile<T, Y, 32, 2, 1>();
}
template <class T>
Tile tile_for(DType y, int64_t tokens) {
  return y == DType::f32 ? tile_for<T, float>(tokens) : tile_for<T, T>(tokens);
}

bool rows_are_mapped(const Tensor& x) {
  constexpr int64_t kAlignment = 16;
  return row_alignment(x) % kAlignment == 0;
}

}  // namespace

bool gemm_stream_takes(const CudaContext::State& cuda, const GemmOperands& operands) {
  constexpr int kCapability = 90;
  const int64_t tokens = operands.x.size(0);
  return operands.order == WeightOrder::out_in && cuda.compute_capability == kCapability &&
         tokens > 0 && tokens <= kMaxTokens && operands.w.size(0) > 0 &&
         operands.w.size(0) <= INT32_MAX / 2 && operands.w.size(1) <= INT32_MAX / 2 &&
         rows_are_mapped(operands.w) && rows_are_mapped(operands.x) && operands.w.size(1) % 8 == 0;
}

void gemm_stream_cuda(const GemmOperands& operands, StreamMemory memory, const ExecContext& ctx) {
  const CudaContext::State& cuda = cuda_state(ctx);
  const CudaQueue& queue = cuda_queue(ctx);
  require(gemm_stream_takes(cuda, operands), "gemm: {} tokens and a weight {} are not streamed",
          operands.x.size(0), operands.w.shape_string());
  const Tensor& w = operands.w;
  const int64_t tokens = operands.x.size(0);
  const Tile tile = operands.x.dtype() == DType::f16
                        ? tile_for<__half>(operands.y.dtype(), tokens)
                        : tile_for<__nv_bfloat16>(operands.y.dtype(), tokens);
  const int64_t steps = (w.size(1) + tile.columns - 1) / tile.columns;
  const int64_t all_steps = steps * ((w.size(0) + tile.rows - 1) / tile.rows);
  require(all_steps <= INT32_MAX, "gemm: a weight {} is too large to be streamed",
          w.shape_string());
  const int64_t blocks = std::clamp<int64_t>(
      all_steps / kMinSteps, 1, std::min<int64_t>(cuda.multiprocessors, CudaQueue::kCounters));

  const int blocks_at_once = memory == StreamMemory::half ? 2 : 1;
  const int ring_bytes = kMultiprocessorBytes / blocks_at_once - kReservedBytes - kStaticBytes -
                         gemm_stream::kBoxAlignment;
  const int stages = std::min(ring_bytes / tile.stage_bytes, gemm_stream::kMaxStages);
  const Parameters p{.x = operands.x.raw(),
                     .x_stride = operands.x.row_stride(),
                     .y = operands.y.raw(),
                     .y_stride = operands.y.row_stride(),
                     .bias = operands.bias.raw(),
                     .partials = static_cast<float*>(queue.workspace),
                     .arrivals = queue.counters,
                     .rows = static_cast<int>(w.size(0)),
                     .columns = static_cast<int>(w.size(1)),
                     .tokens = static_cast<int>(tokens),
                     .steps = static_cast<int>(steps),
                     .all_steps = static_cast<int>(all_steps),
                     .stages = stages,
                     .relu = operands.relu};
  const int shared_bytes = stages * tile.stage_bytes + gemm_stream::kBoxAlignment;
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(tile.kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kMultiprocessorBytes - kReservedBytes - kStaticBytes));
  const CUtensorMap map =
      map_rows({.data = w.raw(), .rows = w.size(0), .columns = w.size(1), .stride = w.row_stride()},
               tile.rows);
  launch(ctx, tile.kernel,
         {.blocks = static_cast<unsigned>(blocks),
          .threads = gemm_stream::kThreads,
          .shared_bytes = static_cast<size_t>(shared_bytes),
          .pdl = true},
         p, map);
}

}  // namespace sparsellm
