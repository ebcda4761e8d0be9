#include "kernels/cpu/token_blocks.h"

namespace sparsellm::token_blocks {
namespace {

using gemm_cpu_kernels::kBlockColumns;

constexpr int64_t kMinTokensToPack = 7;

int64_t block_count(int64_t columns) { return (columns + kBlockColumns - 1) / kBlockColumns; }

}  // namespace

Blocks blocks_of(const Tensor& x, Workspace::Scope& scratch, ThreadPool& threads) {
  const int64_t tokens = x.size(0);
  const int64_t columns = x.size(1);
  if (tokens < kMinTokensToPack) {
    return {.data = x.data<float>(), .stride = x.row_stride(), .block = kBlockColumns};
  }
  const int64_t rows = block_count(columns) * tokens;
  const Tensor packed = scratch.tensor(DType::f32, {rows, kBlockColumns});
  threads.parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = i / tokens * kBlockColumns;
      std::copy_n(x.row<float>(i % tokens) + column, std::min(columns - column, kBlockColumns),
                  packed.row<float>(i));
    }
  });
  return {.data = packed.data<float>(), .stride = kBlockColumns, .block = tokens * kBlockColumns};
}

int64_t workspace_bytes(int64_t in, int64_t tokens) {
  return tokens < kMinTokensToPack
             ? 0
             : Workspace::tensor_bytes(
                   DType::f32, {block_count(in) * std::min(tokens, kMaxTokens), kBlockColumns});
}

}  // namespace sparsellm::token_blocks
