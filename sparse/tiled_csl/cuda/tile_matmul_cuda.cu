#include <algorithm>

#include "kernels/base/cuda_context.h"
#include "kernels/base/launch.cuh"
#include "sparse/tiled_csl/cuda/tile_matmul.cuh"
#include "sparse/tiled_csl/cuda/tile_matmul_cuda.h"

namespace sparsellm {
namespace {

using tiled_csl::TileParameters;
using Kernel = void (*)(TileParameters);

constexpr int64_t kTokensOfALaunch = 32;
constexpr int kSharedBytes = 227 * 1024;  // of a thread block
constexpr int kStaticBytes = 1024;        // barriers and the like, at most
constexpr int kTileAlignment = 1024;
static_assert(sizeof(uint64_t) * tiled_csl::kMaxWarps * tiled_csl::kMaxSlots +
                  sizeof(tiled_csl::SharedRows) <=
              kStaticBytes);
constexpr int kWarpsForAnyTokens = 8;
constexpr int kMostWarps = 11;

struct Variant {
  Kernel kernel;
  int tokens;
  int most_warps;
};
template <class T, int N, int kWarps>
Variant variant() {
  static_assert(kWarps <= tiled_csl::kMaxWarps);
  return {.kernel = &tiled_csl::tile_matmul_kernel<T, N, kWarps * tiled_csl::kWarp>,
          .tokens = N,
          .most_warps = kWarps};
}
// More sums leave registers for fewer warps.
template <class T>
Variant variant_for(int64_t tokens) {
  return tokens <= 8    ? variant<T, 8, kMostWarps>()
         : tokens <= 16 ? variant<T, 16, kMostWarps>()
                        : variant<T, 32, kWarpsForAnyTokens>();
}
Variant variant_for(DType dtype, int64_t tokens) {
  return dtype == DType::f16 ? variant_for<__half>(tokens) : variant_for<__nv_bfloat16>(tokens);
}

int64_t slot_bytes_of(const TileMatrix& matrix) {
  constexpr int64_t kStep = 128;  // bulk copies are the fastest to multiples of it
  return std::min<int64_t>(tiled_csl::ceil_div(matrix.largest_record, kStep) * kStep,
                           tiled_csl::kPieceBytes);
}

// Of a warp; 0 if that many warps have no room.
int slots_for(const TileMatrix& matrix, int warps) {
  const int64_t room =
      (kSharedBytes - kStaticBytes - kTileAlignment) / warps - tiled_csl::kTileBytes;
  return static_cast<int>(
      std::clamp<int64_t>(room / slot_bytes_of(matrix), 0, tiled_csl::kMaxSlots));
}

}  // namespace

int tile_matmul_multiprocessors(Device device) {
  check_cuda(cudaSetDevice(device.index));
  int major = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
  constexpr int kHopper = 9;  // others have less shared memory
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes,
                                   reinterpret_cast<const void*>(variant_for<__half>(1).kernel)));
  constexpr int kBulkCopies = 90;  // a build for earlier architectures has nothing in the kernel
  if (major != kHopper || attributes.ptxVersion < kBulkCopies) {
    return 0;
  }
  int multiprocessors = 0;
  check_cuda(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device.index));
  return multiprocessors;
}

std::string tile_matmul_name(const TileMatmulConfig& config) {
  return fmt::format("{} warps", config.warps);
}

std::vector<TileMatmulConfig> tile_matmul_candidates(const TileMatrix& matrix, int64_t tokens) {
  if (matrix.multiprocessors == 0) {
    return {};
  }
  const int most = variant_for(DType::f16, std::min(tokens, kTokensOfALaunch)).most_warps;
  std::vector<TileMatmulConfig> configs;
  // With two pieces under way for each, more warps are faster.
  for (const int slots : {2, 1}) {
    for (const int warps : {kMostWarps, 10, kWarpsForAnyTokens}) {
      const TileMatmulConfig config{.warps = warps};
      if (warps <= most && slots_for(matrix, warps) >= slots &&
          std::ranges::find(configs, config) == configs.end()) {
        configs.push_back(config);
      }
    }
  }
  return configs;
}

void tile_matmul_cuda(const TileMatrix& matrix, const TileMatmulOperands& operands,
                      const TileMatmulConfig& config, const ExecContext& ctx) {
  const tiled_csl::TileGrid grid = tiled_csl::tile_grid(matrix.rows, matrix.columns);
  if (grid.count() == 0) {
    return;
  }
  require(matrix.multiprocessors > 0, "no tiled_csl kernel runs on this device");
  require(grid.count() < INT32_MAX / 2 && matrix.rows <= INT32_MAX / 2 &&
              matrix.columns <= INT32_MAX / 2,
          "a tiled_csl product with a {} x {} matrix", matrix.rows, matrix.columns);
  const CudaQueue& queue = cuda_queue(ctx);
  const int warps = config.warps;
  const int slots = slots_for(matrix, warps);
  const int64_t blocks = std::min({tiled_csl::ceil_div(grid.count(), warps),
                                   int64_t{matrix.multiprocessors}, CudaQueue::kCounters});
  const int64_t all_warps = blocks * warps;
  for (int64_t first = 0; first < operands.tokens; first += kTokensOfALaunch) {
    const int64_t tokens = std::min(operands.tokens - first, kTokensOfALaunch);
    const Variant variant = variant_for(operands.dtype, tokens);
    require(warps <= variant.most_warps && slots > 0,
            "no tiled_csl kernel of {} warps for {} tokens", warps, tokens);
    const int64_t partial_bytes =
        blocks * (warps + 1) * tiled_csl::kTileRows * variant.tokens * int64_t{sizeof(float)};
    require(partial_bytes <= CudaContext::kWorkspaceBytes, "{} bytes of partial sums",
            partial_bytes);
    const TileParameters p{
        .records = matrix.records,
        .starts = matrix.starts,
        .x = static_cast<const uint16_t*>(operands.x) + first * operands.x_stride,
        .x_stride = operands.x_stride,
        .y = static_cast<uint16_t*>(operands.y) + first * operands.y_stride,
        .y_stride = operands.y_stride,
        .bias = operands.bias,
        .partials = static_cast<float4*>(queue.workspace),
        .arrivals = queue.counters,
        .rows = static_cast<int>(matrix.rows),
        .columns = static_cast<int>(matrix.columns),
        .tokens = static_cast<int>(tokens),
        .row_tiles = static_cast<int>(grid.columns),
        .share = static_cast<int>(grid.count() / all_warps),
        .longer = static_cast<int>(grid.count() % all_warps),
        .slots = slots,
        .slot_bytes = static_cast<int>(slot_bytes_of(matrix)),
        .relu = operands.relu,
        .x_aligned = reinterpret_cast<uintptr_t>(operands.x) % 16 == 0 &&
                     (operands.tokens == 1 || operands.x_stride % 8 == 0)};
    constexpr int kDynamicBytes = kSharedBytes - kStaticBytes;
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(variant.kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, kDynamicBytes));
    launch(ctx, variant.kernel,
           {.blocks = static_cast<unsigned>(blocks),
            .threads = static_cast<unsigned>(warps * tiled_csl::kWarp),
            // All of it: two blocks on a multiprocessor would leave another without one.
            .shared_bytes = kDynamicBytes,
            .pdl = true},
           p);
  }
}

}  // namespace sparsellm
