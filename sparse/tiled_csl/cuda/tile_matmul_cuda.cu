#include <algorithm>
#include <optional>

#include "kernels/base/cuda_context.h"
#include "kernels/base/launch.cuh"
#include "sparse/tiled_csl/cuda/tile_launch.cuh"
#include "sparse/tiled_csl/cuda/tile_matmul_cuda.h"
#include "sparse/tiled_csl/cuda/tile_parameters.cuh"
#include "sparse/tiled_csl/cuda/tile_room.cuh"
#include "sparse/tiled_csl/cuda/tile_wgmma_kernels.cuh"

namespace sparsellm {
namespace {

using tiled_csl::kMostTiles;
using tiled_csl::tile_variant;
using tiled_csl::TileParameters;
using tiled_csl::TileVariant;

constexpr int64_t kTokensOfAWarp = 32;
constexpr int64_t kFewTokens = 16;  // more are faster by warpgroups
// Without measuring, no more tokens than these: tiles are extracted once more for every 128 of them
// (32 by the multistage kernel). Tuning tries up to four times as many (twice).
constexpr int64_t kMaxRuleTokens = 128;
constexpr int64_t kMaxMultistageRuleTokens = 64;
constexpr int64_t kMaxMeasuredTokens = 4 * kMaxRuleTokens;
constexpr int64_t kMaxMultistageMeasuredTokens = 2 * kMaxMultistageRuleTokens;
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

// Of a tile; 0 if that many tiles have no room.
int slots_of(const TileMatrix& matrix, int tiles) {
  return tiled_csl::slots_for(matrix.largest_record, tiles, tiled_csl::kTileBytes);
}

int64_t blocks_for(const TileMatrix& matrix, const TileMatmulConfig& config) {
  const tiled_csl::TileGrid grid = tiled_csl::tile_grid(matrix.rows, matrix.columns);
  return std::min({tiled_csl::ceil_div(grid.count(), config.tiles), int64_t{matrix.multiprocessors},
                   CudaQueue::kCounters});
}
int64_t partial_bytes_for(const TileMatrix& matrix, const TileMatmulConfig& config, int tokens) {
  const int64_t tiles = config.groups > 0 ? tiled_csl::kStepTiles : config.tiles + 1;  // of a block
  return blocks_for(matrix, config) * tiles * tiled_csl::kTileRows * tokens *
         int64_t{sizeof(float)};
}
// Of a launch.
int64_t most_tokens_of(const TileMatmulConfig& config) {
  return config.groups > 0 ? config.groups * tiled_csl::kGroupTokens : kTokensOfAWarp;
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
  if (config.gemm) {
    return "256 tokens at a time";
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

bool tile_matmul_fits(const TileMatrix& matrix, const TileMatmulConfig& config, int64_t tokens) {
  if (config.multistage) {
    return tile_multistage_fits(matrix);
  }
  if (config.gemm) {
    return tile_gemm_fits(matrix);
  }
  const int64_t at_once = std::min(tokens, most_tokens_of(config));
  const TileVariant variant = variant_for(DType::f16, config.groups, true, at_once);
  const bool enough_tiles =
      config.groups == 0 || config.tiles == variant.most_tiles;  // of which each has a warp
  return matrix.multiprocessors > 0 && variant.kernel != nullptr && config.tiles > 0 &&
         config.tiles <= variant.most_tiles && enough_tiles && slots_of(matrix, config.tiles) > 0 &&
         tiled_csl::countable(matrix.rows, matrix.columns) &&
         partial_bytes_for(matrix, config, variant.tokens) <= CudaContext::kWorkspaceBytes;
}

std::optional<TileMatmulConfig> tile_matmul_rule(const TileMatrix& matrix, int64_t tokens) {
  if (matrix.multiprocessors == 0) {
    return tokens <= kMaxMultistageRuleTokens ? tile_matmul_for_any_tokens(matrix) : std::nullopt;
  }
  if (tokens > kMaxRuleTokens) {
    return tokens <= kTileGemmMostTokens && tile_gemm_fits(matrix)
               ? std::optional<TileMatmulConfig>({.gemm = true})
               : std::nullopt;
  }
  const bool by_groups =
      tokens > kFewTokens && tiled_csl::tile_wgmma_kernel_for(DType::f16, 1, true) != nullptr;
  const int groups = by_groups ? (tokens <= tiled_csl::kGroupTokens ? 1 : 2) : 0;
  const int most = variant_for(DType::f16, groups, true, tokens).most_tiles;
  // With two pieces under way for each, more tiles are faster.
  for (const int slots : {2, 1}) {
    for (int tiles = most; tiles >= kTilesForAnyTokens; --tiles) {
      if (slots_of(matrix, tiles) >= slots) {
        return TileMatmulConfig{.tiles = tiles, .groups = groups};
      }
    }
  }
  return std::nullopt;
}

std::vector<TileMatmulConfig> tile_matmul_candidates(const TileMatrix& matrix, int64_t tokens) {
  std::vector<TileMatmulConfig> configs;
  const auto add = [&](const TileMatmulConfig& config) {
    if (tile_matmul_fits(matrix, config, tokens) &&
        std::find(configs.begin(), configs.end(), config) == configs.end()) {
      configs.push_back(config);
    }
  };
  if (const std::optional<TileMatmulConfig> rule = tile_matmul_rule(matrix, tokens)) {
    add(*rule);
  }
  if (matrix.multiprocessors == 0) {
    if (tokens <= kMaxMultistageMeasuredTokens) {
      add({.multistage = true});
    }
    return configs;
  }
  if (tokens <= 2 * kTokensOfAWarp) {
    for (int tiles = kMostTiles; tiles >= kTilesForAnyTokens; --tiles) {
      add({.tiles = tiles});
    }
  }
  // Warpgroups multiply by 64 tokens whether there are as many or not.
  if (tokens > kFewTokens / 2 && tokens <= tiled_csl::kGroupTokens) {
    add({.tiles = tiled_csl::kWgmmaTiles, .groups = 1});
  }
  if (tokens > tiled_csl::kGroupTokens && tokens <= kMaxMeasuredTokens) {
    add({.tiles = tiled_csl::kWgmmaTiles, .groups = 2});
  }
  if (tokens > tiled_csl::kGroupTokens) {
    add({.gemm = true});
  }
  return configs;
}

void tile_matmul_cuda(const TileMatrix& matrix, const CudaProductOperands& operands,
                      const TileMatmulConfig& config, const ExecContext& ctx) {
  if (config.multistage) {
    tile_multistage_cuda(matrix, operands, ctx);
    return;
  }
  if (config.gemm) {
    tile_gemm_cuda(matrix, operands, ctx);
    return;
  }
  tiled_csl::tile_matmul_by({.variant_for = &variant_for}, matrix, operands, config, ctx);
}

void tiled_csl::tile_matmul_by(const TileVariants& variants, const TileMatrix& matrix,
                               const CudaProductOperands& operands, const TileMatmulConfig& config,
                               const ExecContext& ctx) {
  const tiled_csl::TileGrid grid = tiled_csl::tile_grid(matrix.rows, matrix.columns);
  if (grid.count() == 0) {
    return;
  }
  require(tile_matmul_fits(matrix, config, operands.tokens),
          "no tiled_csl kernel of {} for {} tokens with a {} x {} matrix on {} multiprocessors",
          tile_matmul_name(config), operands.tokens, matrix.rows, matrix.columns,
          matrix.multiprocessors);
  const CudaQueue& queue = cuda_queue(ctx);
  const bool by_groups = config.groups > 0;
  const int slots = slots_of(matrix, config.tiles);
  const int64_t blocks = blocks_for(matrix, config);
  const int64_t tiles =  // that are shared out, or steps
      by_groups ? tiled_csl::ceil_div(grid.rows, tiled_csl::kStepTiles) * grid.columns
                : grid.count();
  const int64_t shares = by_groups ? blocks : blocks * config.tiles;
  const bool whole_tiles = matrix.columns % tiled_csl::kTileColumns == 0;
  const int64_t at_once = most_tokens_of(config);
  for (int64_t first = 0; first < operands.tokens; first += at_once) {
    const int64_t tokens = std::min(operands.tokens - first, at_once);
    TileParameters p =
        tiled_csl::tile_parameters(matrix, operands, first, tokens, tiles, shares, queue);
    p.slots = std::min(slots, variants.most_slots);
    p.slot_bytes = tiled_csl::slot_bytes_for(matrix.largest_record);
    // Extraction takes longer than products where records have several pieces.
    p.stage_ahead = matrix.largest_record <= tiled_csl::kPieceBytes;
    const TileVariant variant =
        variants.variant_for(operands.dtype, config.groups, p.x_aligned && whole_tiles, tokens);
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(variant.kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    tiled_csl::kDynamicBytes));
    launch(ctx, variant.kernel,
           {.blocks = static_cast<unsigned>(blocks),
            .threads = static_cast<unsigned>(by_groups ? tiled_csl::wgmma_threads(config.groups)
                                                       : config.tiles * tiled_csl::kWarp),
            // All of it: two blocks on a multiprocessor would leave another without one.
            .shared_bytes = tiled_csl::kDynamicBytes,
            .pdl = true},
           p);
  }
}

}  // namespace sparsellm
