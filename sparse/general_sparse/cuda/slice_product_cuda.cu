#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/launch.cuh"
#include "sparse/general_sparse/cuda/slice_kernels.cuh"
#include "sparse/general_sparse/cuda/slice_product_cuda.h"
#include "sparse/general_sparse/format/chunks.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int kWarpThreads = 32;
constexpr int kMostGroups = 15;  // of warps that share slices: a barrier each, beside the block's
constexpr int kFewTokens = 8;    // of a thread
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
  const int thread_tokens = std::min(config.tile_tokens, kFewTokens);
  const int64_t sums =
      config.parts == 1 ? 0 : int64_t{2} * config.warps * kWarpThreads * thread_tokens;
  const int64_t x = config.staged
                        ? staged_columns(weight.matrix) * config.tile_tokens * size_of(weight.dtype)
                        : 0;
  return x + sums * int64_t{sizeof(float)};
}

int64_t slices_of(const SliceMatrix& m) { return int64_t{m.panel_slices} * m.panels; }

// So that no part has less than a unit.
int most_parts(const SliceWeight& weight) {
  const int64_t slices = std::max<int64_t>(slices_of(weight.matrix), 1);
  const auto units = static_cast<uint64_t>(std::max<int64_t>(weight.units / slices, 1));
  return static_cast<int>(std::min<uint64_t>(std::bit_floor(units), kMostParts));
}

// As many as give each warp of the device something to do.
int parts_for(const SliceWeight& weight) {
  const int64_t slices = std::max<int64_t>(slices_of(weight.matrix), 1);
  constexpr int64_t kWarps = 48;  // of a multiprocessor
  const auto wanted = static_cast<uint64_t>(ceil_div(kWarps * weight.multiprocessors, slices));
  return static_cast<int>(
      std::min<uint64_t>(std::bit_ceil(wanted), static_cast<uint64_t>(most_parts(weight))));
}

int most_tokens_of_thread(int64_t tokens) {
  return static_cast<int>(
      std::min<uint64_t>(std::bit_ceil(static_cast<uint64_t>(tokens)), kFewTokens));
}

// The largest tile, of at most these tokens, whose x fits; 0 if none does.
int largest_tile(const SliceWeight& weight, SliceConfig config, int64_t tokens) {
  for (config.tile_tokens = most_tokens_of_thread(tokens); config.tile_tokens > 0;
       config.tile_tokens /= 2) {
    if (slice_fits(weight, config)) {
      return config.tile_tokens;
    }
  }
  return 0;
}

// How many of the warps that a block may have, and blocks of a multiprocessor.
enum class Blocks : uint8_t { whole, two_halves, half };

SliceConfig usual_config(const SliceWeight& weight, int tile_tokens, int parts, Blocks blocks) {
  const int most = kernel_of(weight, tile_tokens).most_threads / kWarpThreads;
  SliceConfig config{.tile_tokens = tile_tokens,
                     .warps = blocks == Blocks::whole ? most : most / 2,
                     .blocks = blocks == Blocks::two_halves ? 2 : 1};
  config.parts = std::min(parts, config.warps);
  while (config.parts > 1 && config.warps / config.parts > kMostGroups) {
    config.warps /= 2;
    config.blocks *= 2;
  }
  return config;
}

// For one token. Blocks may be small where they do not copy x.
SliceConfig unstaged_config(const SliceWeight& weight, int warps, int parts) {
  const int most = kernel_of(weight, 1, false).most_threads / kWarpThreads;
  return {.tile_tokens = 1,
          .warps = warps,
          .parts = std::min(parts, warps),
          .blocks = most / warps,
          .staged = false};
}

template <class Value>
void add_panels(const SliceMatrix& m, const SliceOperands& o, int tile_tokens, int tiles,
                const ExecContext& ctx) {
  const auto launch_tile = [&]<int kTile>() {
    if (tile_tokens == kTile) {
      constexpr int kParts = kTile < kFewTokens ? 1 : kTile / kFewTokens;
      const int64_t threads = ceil_div(m.rows, kWarpThreads) * kWarpThreads * kParts;
      launch(ctx, add_panels_kernel<Value, kTile>,
             {.blocks =
                  dim3(static_cast<unsigned>(ceil_div(threads, 256)), static_cast<unsigned>(tiles)),
              .threads = 256,
              .pdl = true},
             m, o);
    }
  };
  launch_tile.template operator()<1>();
  launch_tile.template operator()<2>();
  launch_tile.template operator()<4>();
  launch_tile.template operator()<8>();
  launch_tile.template operator()<16>();
  launch_tile.template operator()<32>();
}

}  // namespace

bool has_slice_kernels(const Layout& layout, DType dtype) {
  return layout.interleave == kWarpThreads && layout.panel_columns > 0 &&
         (dtype == DType::f16 || dtype == DType::bf16) &&
         (layout.positions == PositionCode::i8 || layout.positions == PositionCode::u16) &&
         int64_t{layout.vector} * layout.shared_rows * size_of(dtype) == kVectorBytes;
}

std::string slice_name(const SliceConfig& config) {
  return fmt::format("tile {} warps {} parts {} blocks {}{}",
                     config.tile_tokens == 0 ? "any" : std::to_string(config.tile_tokens),
                     config.warps, config.parts, config.blocks, config.staged ? "" : " x l1");
}

bool slice_fits(const SliceWeight& weight, const SliceConfig& config) {
  if (config.tile_tokens == 0) {
    return largest_tile(weight, config, 1) > 0;
  }
  const SliceKernelChoice choice = kernel_of(weight, config.tile_tokens, config.staged);
  return choice.kernel != nullptr && config.warps * kWarpThreads <= choice.most_threads &&
         config.warps % config.parts == 0 && config.parts <= kMostParts &&
         (config.parts == 1 || config.warps / config.parts <= kMostGroups) &&
         shared_bytes_of(weight, config) * config.blocks <= weight.shared_bytes;
}

std::optional<SliceConfig> slice_rule(const SliceWeight& weight, int64_t tokens) {
  const int parts = parts_for(weight);
  for (int tile = most_tokens_of_thread(tokens); tile > 0; tile /= 2) {
    for (const Blocks blocks :
         {tile < kFewTokens ? Blocks::two_halves : Blocks::whole, Blocks::whole, Blocks::half}) {
      const SliceConfig config = usual_config(weight, tile, parts, blocks);
      if (slice_fits(weight, config)) {
        return config;
      }
    }
  }
  return std::nullopt;
}

std::optional<SliceConfig> slice_for_any_tokens(const SliceWeight& weight) {
  const SliceConfig config{.tile_tokens = 0, .warps = 16, .parts = 8, .blocks = 1};
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
  const int most_tile = static_cast<int>(
      std::min<uint64_t>(std::bit_ceil(static_cast<uint64_t>(tokens)), kMostTileTokens));
  const int parts = parts_for(weight);
  for (int tile = most_tile; tile >= std::min(most_tile, kFewTokens); tile /= 2) {
    // All warps of a block for a slice, too: then blocks with one slice more than others wait the
    // least for the end.
    for (const int more : {parts, 2 * parts, most_parts(weight), parts / 2, parts / 4}) {
      if (more < 1 || more > most_parts(weight)) {
        continue;
      }
      for (const Blocks blocks : {Blocks::whole, Blocks::two_halves, Blocks::half}) {
        add(usual_config(weight, tile, more, blocks));
      }
      for (const int warps : {4, 8, 16}) {
        if (tile == 1) {
          add(unstaged_config(weight, warps, more));
        }
      }
    }
  }
  return configs;
}

int64_t slice_workspace_bytes(int64_t rows, int64_t panels, int64_t tokens) {
  if (panels <= 1) {
    return 0;
  }
  const int64_t padded = ceil_div(tokens, kMostTileTokens) * kMostTileTokens;
  return checked_mul(checked_mul(panels, rows, "partial sums"), padded * int64_t{sizeof(float)},
                     "partial sums");
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
  o.x_pairs = std::bit_cast<uintptr_t>(operands.x) % 4 == 0 && m.columns % 2 == 0 &&
              (operands.tokens == 1 || operands.x_stride % 2 == 0);
  // No more blocks than have slices for all of their warps, and at least one for each tile.
  const int64_t most_shares = std::max<int64_t>(slices_of(m) * config.parts / config.warps, 1);
  const int64_t shares =
      std::clamp<int64_t>(int64_t{weight.multiprocessors} * config.blocks / tiles, 1, most_shares);
  if (shares == slices_of(m)) {
    m.share_cuts += m.cuts + 1;  // by units one would have two, and another none
    m.cuts = static_cast<int>(shares);
  }
  const auto shared_bytes = static_cast<size_t>(shared_bytes_of(weight, config));
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(choice.kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  weight.shared_bytes));
  launch(ctx, choice.kernel,
         {.blocks = static_cast<unsigned>(shares * tiles),
          .threads = static_cast<unsigned>(config.warps * kWarpThreads),
          .shared_bytes = shared_bytes,
          .pdl = true},
         m, o, config.parts, tiles);
  if (m.panels > 1) {
    if (weight.dtype == DType::f16) {
      add_panels<__half>(m, o, tile, tiles, ctx);
    } else {
      add_panels<__nv_bfloat16>(m, o, tile, tiles, ctx);
    }
  }
}

}  // namespace sparsellm::general_sparse
