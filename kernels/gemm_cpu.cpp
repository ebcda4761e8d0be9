#include <algorithm>

#include "kernels/base/workspace.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/store_sums.h"
#include "kernels/gemm_device.h"

namespace sparsellm {
namespace {

using gemm_cpu_kernels::kBlockColumns;
using gemm_cpu_kernels::Kernels;
using gemm_cpu_kernels::Multiply;

// Rows whose sums are in the L1 or the L2 until they are complete, and what a kernel takes at a
// time.
constexpr int64_t kMaxRows = 96;
constexpr int64_t kRowsStep = 24;
constexpr int64_t kMaxTokens = 128;
constexpr int64_t kMinTokensToPack = 7;
// Of x, so much stays in the L2 while rows of w pass by.
constexpr int64_t kMaxBytesOfX = 512 << 10;
// Products that are worth the attention of another thread.
constexpr int64_t kMinProductsPerRange = 16 << 10;

const Kernels& kernels_for([[maybe_unused]] CpuIsa isa) {
#if defined(SPARSELLM_X86)
  switch (isa) {
    case CpuIsa::portable:
      break;
    case CpuIsa::avx2:
      return gemm_cpu_kernels::kAvx2Kernels;
    case CpuIsa::avx512:
    case CpuIsa::avx512_vbmi2:
      return gemm_cpu_kernels::kAvx512Kernels;
  }
#endif
  return gemm_cpu_kernels::kPortableKernels;
}

Multiply multiply_of(const Kernels& kernels, DType dtype) {
  return dtype == DType::f32 ? kernels.f32 : dtype == DType::f16 ? kernels.f16 : kernels.bf16;
}

// How many columns of x, in whole blocks, are multiplied before the next ones: those of all
// `tokens` stay in the L2.
int64_t columns_at_once(int64_t tokens) {
  const int64_t blocks =
      kMaxBytesOfX / (tokens * kBlockColumns * static_cast<int64_t>(sizeof(float)));
  return blocks * kBlockColumns;
}
static_assert(kMaxTokens * kBlockColumns * int64_t{sizeof(float)} <= kMaxBytesOfX);

// x of some tokens: the blocks of a row are `block` elements apart, rows of a block `stride`.
struct Blocks {
  const float* data;
  int64_t stride;
  int64_t block;
};

// Block after block. Rows that are a power of two apart would all want the same places of a cache.
Blocks pack(const Tensor& x, Workspace::Scope& scratch, ThreadPool& threads) {
  const int64_t tokens = x.size(0);
  const int64_t columns = x.size(1);
  const int64_t blocks = (columns + kBlockColumns - 1) / kBlockColumns;
  const Tensor packed = scratch.tensor(DType::f32, {blocks * tokens, kBlockColumns});
  threads.parallel_for(blocks * tokens, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i / tokens * kBlockColumns;
      std::copy_n(x.row<float>(i % tokens) + column, std::min(columns - column, kBlockColumns),
                  packed.row<float>(i));
    }
  });
  return {.data = packed.data<float>(), .stride = kBlockColumns, .block = tokens * kBlockColumns};
}

}  // namespace

int64_t gemm_workspace_bytes_cpu(int64_t in, int64_t tokens) {
  const int64_t blocks = (in + kBlockColumns - 1) / kBlockColumns;
  return tokens < kMinTokensToPack
             ? 0
             : Workspace::tensor_bytes(DType::f32,
                                       {blocks * std::min(tokens, kMaxTokens), kBlockColumns});
}

void gemm_cpu(const Tensor& x, const Tensor& w, const Epilogue& epilogue, Tensor y,
              ExecContext& ctx) {
  const int64_t out = w.size(0);
  const int64_t in = w.size(1);
  const Multiply multiply = multiply_of(kernels_for(ctx.isa), w.dtype());
  for (int64_t first = 0; first < x.size(0); first += kMaxTokens) {
    const int64_t tokens = std::min(x.size(0) - first, kMaxTokens);
    auto scratch = ctx.workspace.scope();
    const Blocks xs = tokens < kMinTokensToPack
                          ? Blocks{x.row<float>(first), x.row_stride(), kBlockColumns}
                          : pack(x.rows(first, tokens), scratch, ctx.threads);
    const int64_t step = columns_at_once(tokens);
    const int64_t products_per_row = std::max<int64_t>(in * tokens, 1);
    const int64_t grain = (kMinProductsPerRange / products_per_row / kRowsStep + 1) * kRowsStep;
    ctx.threads.parallel_for(out, grain, [&](int64_t begin, int64_t end) {
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
