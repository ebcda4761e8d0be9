#include <algorithm>

#include "kernels/cpu/dense_kernels.h"
#include "kernels/cpu/store_sums.h"
#include "kernels/cpu/token_blocks.h"
#include "kernels/gemm_device.h"

namespace sparsellm {
namespace {

using gemm_cpu_kernels::kBlockColumns;
using token_blocks::Blocks;
using token_blocks::kMaxTokens;

// Rows whose sums are in the L1 or the L2 until they are complete.
constexpr int64_t kMaxRows = 96;

// How many columns of x, in whole blocks, are multiplied before the next ones: those of all
// `tokens` stay in the L2.
int64_t columns_at_once(int64_t tokens) {
  const int64_t blocks =
      token_blocks::kMaxBytesOfX / (tokens * kBlockColumns * static_cast<int64_t>(sizeof(float)));
  return blocks * kBlockColumns;
}

}  // namespace

int64_t gemm_workspace_bytes_cpu(int64_t in, int64_t tokens) {
  return token_blocks::workspace_bytes(in, tokens);
}

void gemm_cpu(const Tensor& x, const Tensor& w, const Epilogue& epilogue, Tensor y,
              ExecContext& ctx) {
  const int64_t in = w.size(1);
  const gemm_cpu_kernels::Multiply multiply = dense_kernels_for(ctx.isa, w.dtype()).multiply;
  for (int64_t first = 0; first < x.size(0); first += kMaxTokens) {
    const int64_t tokens = std::min(x.size(0) - first, kMaxTokens);
    auto scratch = ctx.workspace.scope();
    const Blocks xs = token_blocks::blocks_of(x.rows(first, tokens), scratch, ctx.threads);
    const int64_t step = columns_at_once(tokens);
    const int64_t grain = token_blocks::rows_per_range(in, tokens);
    ctx.threads.parallel_for(w.size(0), grain, [&](int64_t begin, int64_t end) {
      alignas(64) float sums[kMaxTokens * kMaxRows];
      for (int64_t row = begin; row < end; row += kMaxRows) {
        const int64_t rows = std::min(end - row, kMaxRows);
        int64_t column = 0;
        do {  // once without columns, too
          const int64_t columns = std::min(in - column, step);
          multiply({.w = w.rows(row, 1).columns(column, columns).raw(),
                    .w_stride = w.row_stride(),
                    .rows = rows,
                    .x = xs.data + column / kBlockColumns * xs.block,
                    .x_stride = xs.stride,
                    .x_block = xs.block,
                    .tokens = tokens,
                    .columns = columns,
                    .sums = sums,
                    .sums_stride = kMaxRows,
                    .add = column > 0});
          column += columns;
        } while (column < in);
        store_sums(sums, kMaxRows, first, tokens, row, rows, epilogue, y);
      }
    });
  }
}

}  // namespace sparsellm
