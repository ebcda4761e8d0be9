#include <algorithm>
#include <optional>

#include "kernels/base/cuda_context.h"
#include "kernels/base/launch.cuh"
#include "sparse/tiled_csl/cuda/tile_launch.cuh"
#include "sparse/tiled_csl/cuda/tile_matmul_cuda.h"
#include "sparse/tiled_csl/cuda/tile_wgmma_kernels.cuh"

namespace sparsellm {
namespace {

using tiled_csl::kMostTiles;
using tiled_csl::tile_variant;
using tiled_csl::TileParameters;
using tiled_csl::TileVariant;

constexpr int kSharedBytes = 227 * 1024;  // of a thread block
constexpr int kStaticBytes = 1024;        // barriers and the like, at most
constexpr int kDynamicBytes = kSharedBytes - kStaticBytes;
constexpr int kTileAlignment = 1024;
static_assert(sizeof(uint64_t) * tiled_csl::kMaxWarps * (tiled_csl::kMaxSlots + 2) +
                  sizeof(tiled_csl::SharedRows) <=
              kStaticBytes);
constexpr int64_t kTokensOfAWarp = 32;
constexpr int64_t kFewTokens = 16;         // more are faster by warpgroups
constexpr int64_t kMultistageTokens = 64;  // more are not worth extracting the tiles for every 32
constexpr int kTilesForAnyTokens = 8;

// More sums leave registers for fewer warps.
template <class T>
TileVariant variant_for(int64_t tokens) {
  return tokens <= 8    ? tile_variant<T, 8, kMostTiles>()
         : tokens <= 16 ? tile_variant<T, 16, kMostTiles>()
                        : tile_variant<T, 32, kTilesForAnyTokens>();
}
TileVariant variant_for(DType dtype, int groups, bool fast, int64_t tokens) {
  if (groups > 0) {
    return {.kernel = tiled_csl::tile_wgmma_kernel_for(dtype, groups, fast),
            .tokens = groups * tiled_csl::kGroupTokens,
            .most_tiles = tiled_csl::kWgmmaTiles};
  }
  return dtype == DType::f16 ? variant_for<__half>(tokens) : variant_for<__nv_bfloat16>(tokens);
}

int64_t slot_bytes_of(const TileMatrix& matrix) {
  constexpr int64_t kStep = 128;  // bulk copies are the fastest to multiples of it
  return std::min<int64_t>(tiled_csl::ceil_div(matrix.largest_record, kStep) * kStep,
                           tiled_csl::kPieceBytes);
}

// Of a tile; 0 if that many tiles have no room.
int slots_for(const TileMatrix& matrix, int tiles) {
  const int64_t room = (kDynamicBytes - kTileAlignment) / tiles - tiled_csl::kTileBytes;
  return static_cast<int>(
      std::clamp<int64_t>(room / slot_bytes_of(matrix), 0, tiled_csl::kMaxSlots));
}

// Of float, for a thread block.
int64_t partial_sums(const TileMatmulConfig& config, int tokens) {
  const int64_t tiles = config.groups > 0 ? tiled_csl::kStepTiles : config.tiles + 1;
  return tiles * tiled_csl::kTileRows * tokens;
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
  if (config.multistage) {
    return "multistage";
  }
  return config.groups == 0 ? fmt::format("{} tiles", config.tiles)
                            : fmt::format("{} tiles, {} warpgroup{}", config.tiles, config.groups,
                                          config.groups == 1 ? "" : "s");
}

std::optional<TileMatmulConfig> tile_matmul_for_any_tokens(const TileMatrix& matrix) {
  if (matrix.multiprocessors == 0) {
    return tile_multistage_fits(matrix) ? std::optional<TileMatmulConfig>({.multistage = true})
                                        : std::nullopt;
  }
  return TileMatmulConfig{.tiles = kTilesForAnyTokens};
}

std::optional<TileMatmulConfig> tile_matmul_rule(const TileMatrix& matrix, int64_t tokens) {
  if (matrix.multiprocessors == 0) {
    return tokens <= kMultistageTokens ? tile_matmul_for_any_tokens(matrix) : std::nullopt;
  }
  const bool by_groups =
      tokens > kFewTokens && tiled_csl::tile_wgmma_kernel_for(DType::f16, 1, true) != nullptr;
  const int groups = by_groups ? (tokens <= tiled_csl::kGroupTokens ? 1 : 2) : 0;
  const int most = variant_for(DType::f16, groups, true, tokens).most_tiles;
  // With two pieces under way for each, more tiles are faster.
  for (const int slots : {2, 1}) {
    for (int tiles = most; tiles >= kTilesForAnyTokens; --tiles) {
      if (slots_for(matrix, tiles) >= slots) {
        return TileMatmulConfig{.tiles = tiles, .groups = groups};
      }
    }
  }
  return std::nullopt;
}

void tile_matmul_cuda(const TileMatrix& matrix, const TileMatmulOperands& operands,
                      const TileMatmulConfig& config, const ExecContext& ctx) {
  if (config.multistage) {
    tile_multistage_cuda(matrix, operands, ctx);
    return;
  }
  tiled_csl::tile_matmul_by({.variant_for = &variant_for}, matrix, operands, config, ctx);
}

void tiled_csl::tile_matmul_by(const TileVariants& variants, const TileMatrix& matrix,
                               const TileMatmulOperands& operands, const TileMatmulConfig& config,
                               const ExecContext& ctx) {
  const tiled_csl::TileGrid grid = tiled_csl::tile_grid(matrix.rows, matrix.columns);
  if (grid.count() == 0) {
    return;
  }
  require(matrix.multiprocessors > 0, "no tiled_csl kernel runs on this device");
  require(grid.count() < INT32_MAX / 2 && matrix.rows <= INT32_MAX / 2 &&
              matrix.columns <= INT32_MAX / 2,
          "a tiled_csl product with a {} x {} matrix", matrix.rows, matrix.columns);
  const CudaQueue& queue = cuda_queue(ctx);
  const bool by_groups = config.groups > 0;
  const int slots = slots_for(matrix, config.tiles);
  const int64_t blocks = std::min({tiled_csl::ceil_div(grid.count(), config.tiles),
                                   int64_t{matrix.multiprocessors}, CudaQueue::kCounters});
  const int64_t tiles =  // that are shared out, or steps
      by_groups ? tiled_csl::ceil_div(grid.rows, tiled_csl::kStepTiles) * grid.columns
                : grid.count();
  const int64_t shares = by_groups ? blocks : blocks * config.tiles;
  const bool x_aligned = reinterpret_cast<uintptr_t>(operands.x) % 16 == 0 &&
                         (operands.tokens == 1 || operands.x_stride % 8 == 0);
  const bool whole_tiles = matrix.columns % tiled_csl::kTileColumns == 0;
  const int64_t at_once = by_groups ? config.groups * tiled_csl::kGroupTokens : kTokensOfAWarp;
  for (int64_t first = 0; first < operands.tokens; first += at_once) {
    const int64_t tokens = std::min(operands.tokens - first, at_once);
    const TileVariant variant =
        variants.variant_for(operands.dtype, config.groups, x_aligned && whole_tiles, tokens);
    require(variant.kernel != nullptr && config.tiles <= variant.most_tiles && slots > 0,
            "no tiled_csl kernel of {} for {} tokens", tile_matmul_name(config), tokens);
    const int64_t partial_bytes =
        blocks * partial_sums(config, variant.tokens) * int64_t{sizeof(float)};
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
        .share = static_cast<int>(tiles / shares),
        .longer = static_cast<int>(tiles % shares),
        .slots = std::min(slots, variants.most_slots),
        .slot_bytes = static_cast<int>(slot_bytes_of(matrix)),
        .relu = operands.relu,
        .y_in_pairs = reinterpret_cast<uintptr_t>(operands.y) % 4 == 0 &&
                      (operands.tokens == 1 || operands.y_stride % 2 == 0),
        .x_aligned = x_aligned};
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(variant.kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, kDynamicBytes));
    launch(ctx, variant.kernel,
           {.blocks = static_cast<unsigned>(blocks),
            .threads = static_cast<unsigned>(by_groups ? tiled_csl::wgmma_threads(config.groups)
                                                       : config.tiles * tiled_csl::kWarp),
            // All of it: two blocks on a multiprocessor would leave another without one.
            .shared_bytes = kDynamicBytes,
            .pdl = true},
           p);
  }
}

}  // namespace sparsellm
