#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/launch.cuh"
#include "sparse/general_sparse/cuda/slice_kernels.cuh"
#include "sparse/general_sparse/cuda/slice_plan.h"
#include "sparse/general_sparse/cuda/slice_product_cuda.h"
#include "sparse/general_sparse/format/chunks.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int kWarpThreads = 32;
constexpr int64_t kVectorBytes = 16;

SliceKernelChoice kernel_of(const SliceWeight& weight, int tile_tokens, bool staged = true) {
  const bool differences = weight.layout.positions == PositionCode::i8;
  const SliceKernelKind kind{
      .shared_rows = weight.layout.shared_rows, .tile_tokens = tile_tokens, .staged = staged};
  if (weight.dtype == DType::f16) {
    return differences ? f16_differences_kernel(kind) : f16_columns_kernel(kind);
  }
  return differences ? bf16_differences_kernel(kind) : bf16_columns_kernel(kind);
}

int64_t shared_bytes_of(const SliceWeight& weight, const SliceConfig& config) {
  const int64_t x = config.staged
                        ? staged_columns(weight.matrix) * config.tile_tokens * size_of(weight.dtype)
                        : 0;
  const int64_t sums = int64_t{weight.layout.shared_rows} * config.tile_tokens * kWarpThreads;
  return x + config.warps * (sums * int64_t{sizeof(float)} + int64_t{sizeof(uint32_t)});
}

int most_tile_tokens(int64_t tokens) {
  return static_cast<int>(
      std::min<uint64_t>(std::bit_ceil(static_cast<uint64_t>(tokens)), kMostTileTokens));
}

// The largest tile, of at most these tokens, whose x fits; 0 if none does.
int largest_tile(const SliceWeight& weight, SliceConfig config, int64_t tokens) {
  for (config.tile_tokens = most_tile_tokens(tokens); config.tile_tokens > 0;
       config.tile_tokens /= 2) {
    if (slice_fits(weight, config)) {
      return config.tile_tokens;
    }
  }
  return 0;
}

SliceConfig staged_config(const SliceWeight& weight, int tile_tokens, int fewer, int blocks) {
  const int most = kernel_of(weight, tile_tokens).most_threads / kWarpThreads;
  return {.tile_tokens = tile_tokens, .warps = std::max(most / fewer, 1), .blocks = blocks};
}

// For one token. Blocks may be small where they do not copy x.
SliceConfig unstaged_config(const SliceWeight& weight, int warps) {
  const int most = kernel_of(weight, 1, false).most_threads / kWarpThreads;
  return {.tile_tokens = 1, .warps = warps, .blocks = most / warps, .staged = false};
}

// The number of the schedule for at most this many thread blocks.
size_t schedule_for(const SliceWeight& weight, int64_t shares) {
  const auto more = std::ranges::upper_bound(weight.shares, shares);
  return static_cast<size_t>(std::max<std::ptrdiff_t>(more - weight.shares.begin() - 1, 0));
}

template <class Value>
void add_panels(const SliceMatrix& m, const SliceOperands& o, int tile_tokens, int tiles,
                const ExecContext& ctx) {
  const auto launch_tile = [&]<int kTile>() {
    if (tile_tokens == kTile) {
      launch(ctx, add_panels_kernel<Value, kTile>,
             {.blocks =
                  dim3(static_cast<unsigned>(ceil_div(m.rows, 256)), static_cast<unsigned>(tiles)),
              .threads = 256,
              .pdl = true},
             m, o);
    }
  };
  launch_tile.template operator()<1>();
  launch_tile.template operator()<2>();
  launch_tile.template operator()<4>();
  launch_tile.template operator()<8>();
}

}  // namespace

bool has_slice_kernels(const Layout& layout, DType dtype) {
  return layout.interleave == kWarpThreads && layout.panel_columns > 0 &&
         (dtype == DType::f16 || dtype == DType::bf16) &&
         (layout.positions == PositionCode::i8 || layout.positions == PositionCode::u16) &&
         int64_t{layout.vector} * layout.shared_rows * size_of(dtype) == kVectorBytes;
}

std::string slice_name(const SliceConfig& config) {
  return fmt::format("tile {} warps {} blocks {}{}",
                     config.tile_tokens == 0 ? "any" : std::to_string(config.tile_tokens),
                     config.warps, config.blocks, config.staged ? "" : " x l1");
}

bool slice_fits(const SliceWeight& weight, const SliceConfig& config) {
  if (config.tile_tokens == 0) {
    return largest_tile(weight, config, 1) > 0;
  }
  const SliceKernelChoice choice = kernel_of(weight, config.tile_tokens, config.staged);
  return choice.kernel != nullptr && config.warps * kWarpThreads <= choice.most_threads &&
         std::has_single_bit(static_cast<unsigned>(config.warps)) &&
         shared_bytes_of(weight, config) * config.blocks <= weight.shared_bytes;
}

std::optional<SliceConfig> slice_rule(const SliceWeight& weight, int64_t tokens) {
  for (int tile = most_tile_tokens(tokens); tile > 0; tile /= 2) {
    for (const SliceConfig& config :
         {tile < kMostTileTokens ? staged_config(weight, tile, 2, 2)
                                 : staged_config(weight, tile, 1, 1),
          staged_config(weight, tile, 1, 1), staged_config(weight, tile, 2, 1)}) {
      if (slice_fits(weight, config)) {
        return config;
      }
    }
  }
  return std::nullopt;
}

std::optional<SliceConfig> slice_for_any_tokens(const SliceWeight& weight) {
  const int most = kernel_of(weight, kMostTileTokens).most_threads / kWarpThreads;
  const SliceConfig config{.tile_tokens = 0, .warps = std::min(most, 16), .blocks = 1};
  return slice_fits(weight, config) ? std::optional(config) : std::nullopt;
}

std::vector<SliceConfig> slice_candidates(const SliceWeight& weight, int64_t tokens) {
  std::vector<SliceConfig> configs;
  const auto add = [&](const SliceConfig& config) {
    if (slice_fits(weight, config) &&
        std::find(configs.begin(), configs.end(), config) == configs.end()) {
      configs.push_back(config);
    }
  };
  if (const std::optional<SliceConfig> rule = slice_rule(weight, tokens)) {
    add(*rule);
  }
  const int tile = most_tile_tokens(tokens);
  for (const int fewer : {1, 2, 4}) {
    for (const int blocks : {1, 2}) {
      add(staged_config(weight, tile, fewer, blocks));
    }
  }
  for (const int warps : {4, 8, 16}) {
    if (tile == 1) {
      add(unstaged_config(weight, warps));
    }
  }
  return configs;
}

void slice_product_cuda(const SliceWeight& weight, const CudaProductOperands& operands,
                        const SliceConfig& wanted, const ExecContext& ctx) {
  require(slice_fits(weight, wanted), "general_sparse: {} does not fit the device",
          slice_name(wanted));
  SliceMatrix m = weight.matrix;
  SliceConfig config = wanted;
  if (config.tile_tokens == 0) {
    config.tile_tokens = largest_tile(weight, config, operands.tokens);
  }
  const SliceKernelChoice choice = kernel_of(weight, config.tile_tokens, config.staged);
  const int tile = config.tile_tokens;
  const auto tiles = static_cast<int>(ceil_div(operands.tokens, tile));
  SliceOperands o{.x = operands.x,
                  .y = operands.y,
                  .bias = operands.bias,
                  .partials = static_cast<float*>(operands.workspace),
                  .x_stride = operands.x_stride,
                  .y_stride = operands.y_stride,
                  .tokens = static_cast<int>(operands.tokens),
                  .relu = operands.relu};
  const int at_once = columns_at_once(tile);
  o.x_aligned = std::bit_cast<uintptr_t>(operands.x) % (at_once * size_of(weight.dtype)) == 0 &&
                (operands.tokens == 1 || operands.x_stride % at_once == 0);
  const int tiles_at_once = wanted.tile_tokens == 0 ? 1 : tiles;
  const size_t number =
      schedule_for(weight, int64_t{weight.multiprocessors} * config.blocks / tiles_at_once);
  const SchedulePlace place = schedule_place(weight.shares, m.slices, number);
  m.shares = weight.shares[number];
  m.schedule = reinterpret_cast<const ScheduledSlice*>(weight.schedules + place.slices);
  m.share_begins = weight.schedules + place.share_begins;
  const auto shared_bytes = static_cast<size_t>(shared_bytes_of(weight, config));
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(choice.kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  weight.shared_bytes));
  launch(ctx, choice.kernel,
         {.blocks = static_cast<unsigned>(m.shares * tiles),
          .threads = static_cast<unsigned>(config.warps * kWarpThreads),
          .shared_bytes = shared_bytes,
          .pdl = true},
         m, o, tiles);
  if (m.panels > 1) {
    if (weight.dtype == DType::f16) {
      add_panels<__half>(m, o, tile, tiles, ctx);
    } else {
      add_panels<__nv_bfloat16>(m, o, tile, tiles, ctx);
    }
  }
}

}  // namespace sparsellm::general_sparse
