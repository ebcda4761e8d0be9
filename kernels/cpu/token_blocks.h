#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "kernels/base/workspace.h"
#include "kernels/cpu/gemm_kernels.h"

// How products of dense weights take their tokens on the CPU.
namespace sparsellm::token_blocks {

// That are multiplied by rows of w together.
inline constexpr int64_t kMaxTokens = 128;
// Of x, so much stays in the L2 while rows of w pass by.
inline constexpr int64_t kMaxBytesOfX = 512 << 10;
static_assert(kMaxTokens * gemm_cpu_kernels::kBlockColumns * int64_t{sizeof(float)} <=
              kMaxBytesOfX);
// What a kernel takes at a time, of every instruction set.
inline constexpr int64_t kRowsStep = 24;

// How many rows of w are worth the attention of another thread, in whole steps.
inline int64_t rows_per_range(int64_t in, int64_t tokens) {
  constexpr int64_t kMinProducts = 16 << 10;
  return (kMinProducts / std::max<int64_t>(in * tokens, 1) / kRowsStep + 1) * kRowsStep;
}

// x of some tokens: the blocks of a row are `block` elements apart, rows of a block `stride`.
struct Blocks {
  const float* data;
  int64_t stride;
  int64_t block;
};

// x of up to kMaxTokens tokens; of more than a few of them in the scratch, block after block: rows
// that are a power of two apart would all want the same places of a cache.
Blocks blocks_of(const Tensor& x, Workspace::Scope& scratch, ThreadPool& threads);
// What it takes, of any number of tokens.
int64_t workspace_bytes(int64_t in, int64_t tokens);

}  // namespace sparsellm::token_blocks
