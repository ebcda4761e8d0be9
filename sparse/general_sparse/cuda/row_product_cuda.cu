#include <algorithm>
#include <bit>

#include "kernels/base/launch.cuh"
#include "sparse/general_sparse/cuda/row_kernels.cuh"
#include "sparse/general_sparse/cuda/row_product_cuda.h"
#include "sparse/general_sparse/format/chunks.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int kWarpThreads = 32;

RowKernelChoice kernel_of(const RowWeight& weight, int64_t tokens) {
  const int wanted = static_cast<int>(std::min<int64_t>(tokens, kMostRowTokens));
  const RowKernelKind kind{.wide_positions = weight.layout.positions == PositionCode::u32,
                           .single_entries = weight.layout.vector == 1,
                           .shared_rows = weight.layout.shared_rows};
  switch (weight.dtype) {
    case DType::f16:
      return f16_row_kernel(kind, wanted);
    case DType::bf16:
      return bf16_row_kernel(kind, wanted);
    default:
      return f32_row_kernel(kind, wanted);
  }
}

int tile_of(const RowKernelChoice& choice) { return choice.thread_tokens * choice.group_threads; }

// As many groups for a row as have two batches each on average, or one where that leaves
// multiprocessors without work.
int row_groups_for(const RowWeight& weight, const RowKernelChoice& choice) {
  constexpr int64_t kEntries = 8;
  constexpr int64_t kFewestEntries = 3;
  constexpr int64_t kThreads = 1024;  // of a multiprocessor
  const auto groups_with = [&](int64_t entries) {
    const auto wanted =
        static_cast<unsigned>(std::clamp<int64_t>(weight.mean_entries / entries, 1, kWarpThreads));
    return std::min(static_cast<int>(std::bit_floor(wanted)), kWarpThreads / choice.group_threads);
  };
  int groups = groups_with(kEntries);
  while (groups < groups_with(kFewestEntries) &&
         int64_t{weight.matrix.groups} * choice.group_threads * groups <
             weight.multiprocessors * kThreads) {
    groups *= 2;
  }
  return groups;
}

bool whole_vectors(const RowProductOperands& o, const RowKernelChoice& choice, int64_t bytes) {
  const auto aligned = [&](const void* pointer, int64_t stride) {
    return std::bit_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0 &&
           stride % choice.thread_tokens == 0;
  };
  return aligned(o.b, o.b_stride) && (o.c_token != 1 || aligned(o.c, o.c_row));
}

}  // namespace

bool has_row_kernels(const Layout& layout, int64_t columns) {
  return layout.interleave == 1 && (layout.panel_columns == 0 || columns <= layout.panel_columns) &&
         (layout.positions == PositionCode::u16 || layout.positions == PositionCode::u32) &&
         (layout.vector == 1 || (layout.vector == 4 && layout.shared_rows == 1));
}

int64_t row_workspace_bytes(const RowWeight& weight, int64_t tokens) {
  if (weight.partials == 0) {
    return 0;
  }
  const int64_t tile = tile_of(kernel_of(weight, tokens));
  return checked_mul(
      weight.partials,
      ceil_div(tokens, tile) * tile * weight.layout.shared_rows * int64_t{sizeof(float)},
      "partial sums");
}

void row_product_cuda(const RowWeight& weight, const RowProductOperands& operands,
                      const ExecContext& ctx) {
  const RowKernelChoice choice = kernel_of(weight, operands.tokens);
  const int groups = row_groups_for(weight, choice);
  const int64_t rows_of_block = kRowThreads / choice.group_threads / groups;
  const int64_t row_blocks = ceil_div(weight.matrix.groups, rows_of_block);
  const int64_t warp_blocks = ceil_div(weight.warp_rows, kRowThreads / kWarpThreads);
  const RowOperands o{
      .b = operands.b,
      .c = operands.c,
      .partials = static_cast<float*>(operands.workspace),
      .pieces = weight.piece_list,
      .split_rows = weight.split_list,
      .b_stride = operands.b_stride,
      .c_row = operands.c_row,
      .c_token = operands.c_token,
      .tokens = static_cast<int>(operands.tokens),
      .block_pieces = weight.block_pieces,
      .warp_rows = weight.warp_rows,
      .warp_blocks = static_cast<int>(warp_blocks),
      .longest = weight.longest,
      .row_groups = groups,
      .partial_count = weight.partials,
      .vectors = whole_vectors(operands, choice, choice.thread_tokens * size_of(weight.dtype))};
  const auto tiles = static_cast<unsigned>(ceil_div(operands.tokens, tile_of(choice)));
  launch(
      ctx, choice.product,
      {.blocks = dim3(static_cast<unsigned>(weight.block_pieces + warp_blocks + row_blocks), tiles),
       .threads = kRowThreads,
       .pdl = true},
      weight.matrix, o);
  launch(ctx, choice.add_pieces,
         {.blocks = dim3(static_cast<unsigned>(weight.split_rows), tiles),
          .threads = kRowThreads,
          .pdl = true},
         weight.matrix, o);
}

std::string row_plan_text(const RowWeight& weight, int64_t tokens) {
  const RowKernelChoice choice = kernel_of(weight, tokens);
  return fmt::format("rows tokens {} group {} row groups {} of a warp {} pieces {}",
                     choice.thread_tokens, choice.group_threads, row_groups_for(weight, choice),
                     weight.warp_rows, weight.block_pieces);
}

}  // namespace sparsellm::general_sparse
