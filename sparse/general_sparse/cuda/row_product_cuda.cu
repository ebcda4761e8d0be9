#include <algorithm>
#include <bit>

#include "kernels/base/launch.cuh"
#include "sparse/general_sparse/cuda/row_kernels.cuh"
#include "sparse/general_sparse/cuda/row_product_cuda.h"
#include "sparse/general_sparse/format/chunks.h"
#include "sparse/general_sparse/layout_rule.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int kWarpThreads = 32;

RowKernelChoice kernel_of(const RowWeight& weight, int tile_tokens) {
  const RowKernelKind kind{.wide_positions = weight.layout.positions == PositionCode::u32,
                           .single_entries = weight.layout.vector == 1,
                           .shared_rows = weight.layout.shared_rows};
  switch (weight.dtype) {
    case DType::f16:
      return f16_row_kernel(kind, tile_tokens);
    case DType::bf16:
      return bf16_row_kernel(kind, tile_tokens);
    default:
      return f32_row_kernel(kind, tile_tokens);
  }
}

int tile_of(const RowKernelChoice& choice) { return choice.thread_tokens * choice.group_threads; }

int most_row_groups(const RowKernelChoice& choice) { return kWarpThreads / choice.group_threads; }

// As many groups for a row as have two batches each on average, or one where that leaves
// multiprocessors without work.
int row_groups_for(const RowWeight& weight, const RowKernelChoice& choice) {
  constexpr int64_t kEntries = 8;
  constexpr int64_t kFewestEntries = 3;
  constexpr int64_t kThreads = 1024;  // of a multiprocessor
  const auto groups_with = [&](int64_t entries) {
    const auto wanted = static_cast<unsigned>(
        std::clamp<int64_t>(weight.counts.mean_entries / entries, 1, kWarpThreads));
    return std::min(static_cast<int>(std::bit_floor(wanted)), most_row_groups(choice));
  };
  int groups = groups_with(kEntries);
  while (groups < groups_with(kFewestEntries) &&
         int64_t{weight.matrix.groups} * choice.group_threads * groups <
             weight.multiprocessors * kThreads) {
    groups *= 2;
  }
  return groups;
}

bool whole_vectors(const DenseOperands& o, const RowKernelChoice& choice, int64_t bytes) {
  const auto aligned = [&](const void* pointer, int64_t stride) {
    return std::bit_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0 &&
           stride % choice.thread_tokens == 0;
  };
  return aligned(o.b, o.b_stride) && (o.c_token != 1 || aligned(o.c, o.c_row));
}

}  // namespace

bool has_row_kernels(const Layout& layout, int64_t columns) {
  return !why_no_row_kernels(layout, columns);
}

int64_t row_workspace_bytes(const RowWeight& weight, int64_t tokens) {
  const int64_t in_tiles = ceil_div(tokens, kMostRowTokens) * kMostRowTokens;
  return checked_mul(weight.counts.partials,
                     in_tiles * weight.layout.shared_rows * int64_t{sizeof(float)}, "partial sums");
}

std::string row_name(const RowConfig& config) {
  return fmt::format("groups {} tile {}", config.row_groups, config.tile_tokens);
}

RowConfig row_rule(const RowWeight& weight, int64_t tokens) {
  const int tile = static_cast<int>(std::min<int64_t>(tokens, kMostRowTokens));
  return {.row_groups = row_groups_for(weight, kernel_of(weight, tile)), .tile_tokens = tile};
}

RowConfig row_for_any_tokens(const RowWeight& weight) {
  constexpr int kTile = 8;
  return row_rule(weight, kTile);
}

std::vector<RowConfig> row_candidates(const RowWeight& weight, int64_t tokens) {
  std::vector<RowConfig> configs{row_rule(weight, tokens)};
  const RowConfig rule = configs.front();
  const int most = most_row_groups(kernel_of(weight, rule.tile_tokens));
  for (int groups = 1; groups <= most; groups *= 2) {
    if (groups != rule.row_groups) {
      configs.push_back({.row_groups = groups, .tile_tokens = rule.tile_tokens});
    }
  }
  return configs;
}

void row_product_cuda(const RowWeight& weight, const RowProductOperands& operands,
                      const RowConfig& config, const ExecContext& ctx) {
  const RowKernelChoice choice = kernel_of(weight, config.tile_tokens);
  const int groups = std::min(config.row_groups, most_row_groups(choice));
  const int64_t rows_of_block = kRowThreads / choice.group_threads / groups;
  const int64_t row_blocks = ceil_div(weight.matrix.groups, rows_of_block);
  const int64_t warp_blocks = ceil_div(weight.counts.warp_rows, kRowThreads / kWarpThreads);
  const RowOperands o{.b = operands.dense.b,
                      .c = operands.dense.c,
                      .bias = operands.bias,
                      .partials = static_cast<float*>(operands.workspace),
                      .pieces = weight.piece_list,
                      .split_rows = weight.split_list,
                      .b_stride = operands.dense.b_stride,
                      .c_row = operands.dense.c_row,
                      .c_token = operands.dense.c_token,
                      .tokens = static_cast<int>(operands.dense.tokens),
                      .block_pieces = weight.counts.block_pieces,
                      .warp_rows = weight.counts.warp_rows,
                      .warp_blocks = static_cast<int>(warp_blocks),
                      .longest = weight.counts.longest,
                      .row_groups = groups,
                      .partial_count = weight.counts.partials,
                      .relu = operands.relu,
                      .vectors = whole_vectors(operands.dense, choice,
                                               choice.thread_tokens * size_of(weight.dtype))};
  const auto tiles = static_cast<unsigned>(ceil_div(operands.dense.tokens, tile_of(choice)));
  launch(ctx, choice.product,
         {.blocks = dim3(
              static_cast<unsigned>(weight.counts.block_pieces + warp_blocks + row_blocks), tiles),
          .threads = kRowThreads,
          .pdl = true},
         weight.matrix, o);
  launch(ctx, choice.add_pieces,
         {.blocks = dim3(static_cast<unsigned>(weight.counts.split_rows), tiles),
          .threads = kRowThreads,
          .pdl = true},
         weight.matrix, o);
}

}  // namespace sparsellm::general_sparse
