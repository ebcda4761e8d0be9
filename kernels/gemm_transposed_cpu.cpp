#include <algorithm>
#include <cstddef>

#include "kernels/cpu/dense_kernels.h"
#include "kernels/cpu/store_sums.h"
#include "kernels/cpu/token_blocks.h"
#include "kernels/cpu/transpose.h"
#include "kernels/gemm_device.h"

namespace sparsellm {
namespace {

using gemm_cpu_kernels::kBlockColumns;
using token_blocks::kMaxTokens;

// Rows of the weight, which are columns of its transpose, are put together in a panel of one block
// of columns, which stays in the L2 while the tokens pass by. The rows of a panel do not begin at
// the same places of a cache.
constexpr int64_t kPanelRows = 4 * token_blocks::kRowsStep;  // of 16-bit weights
constexpr int64_t kPanelStride = kBlockColumns + 32;
constexpr int64_t kPanelBytes = kPanelRows * kPanelStride * 2;

}  // namespace

void gemm_transposed_cpu(const Tensor& x, const Tensor& wt, const Epilogue& epilogue, Tensor y,
                         ExecContext& ctx) {
  const int64_t in = wt.size(0);
  const int64_t bytes = size_of(wt.dtype());
  const int64_t max_rows = kPanelBytes / (kPanelStride * bytes);
  const gemm_cpu_kernels::Multiply multiply = dense_kernels_for(ctx.isa, wt.dtype()).multiply;
  for (int64_t first = 0; first < x.size(0); first += kMaxTokens) {
    const int64_t tokens = std::min(x.size(0) - first, kMaxTokens);
    auto scratch = ctx.workspace.scope();
    const auto xs = token_blocks::blocks_of(x.rows(first, tokens), scratch, ctx.threads);
    const int64_t grain = token_blocks::rows_per_range(in, tokens);
    ctx.threads.parallel_for(wt.size(1), grain, [&](int64_t begin, int64_t end) {
      alignas(64) std::byte panel[kPanelBytes];
      alignas(64) float sums[kMaxTokens * kPanelRows];
      for (int64_t row = begin; row < end; row += max_rows) {
        const int64_t rows = std::min(end - row, max_rows);
        int64_t column = 0;
        do {  // once without columns, too
          const int64_t columns = std::min(in - column, kBlockColumns);
          transpose_part({.data = wt.rows(column, columns).columns(row, rows).raw(),
                          .stride = wt.row_stride(),
                          .rows = columns,
                          .columns = rows},
                         bytes, panel, kPanelStride);
          multiply({.w = panel,
                    .w_stride = kPanelStride,
                    .rows = rows,
                    .x = xs.data + column / kBlockColumns * xs.block,
                    .x_stride = xs.stride,
                    .x_block = xs.block,
                    .tokens = tokens,
                    .columns = columns,
                    .sums = sums,
                    .sums_stride = kPanelRows,
                    .add = column > 0});
          column += columns;
        } while (column < in);
        store_sums(sums, kPanelRows, first, tokens, row, rows, epilogue, y);
      }
    });
  }
}

}  // namespace sparsellm
