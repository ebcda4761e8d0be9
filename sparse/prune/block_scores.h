#pragma once

#include "kernels/base/buffer.h"
#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"
#include "kernels/block_shape.h"
#include "sparse/prune/prune.h"

namespace sparsellm {

// f32 [ceil(rows / block.rows), ceil(columns / block.columns)] in host memory: the mean |w| of each
// block of w (of those of its elements that are in w), 0 only for blocks of zeros. Sums are in
// double and in row-major order. Of PruneMethod::Kind::random all other scores are 1. There is no
// NaN in w, which is in host memory.
OwnedTensor block_scores(const Tensor& w, const BlockShape& block, PruneMethod::Kind kind,
                         ThreadPool& threads);

// Sets the blocks of w to zero that have the score 0.
void zero_blocks(const Tensor& w, const BlockShape& block, const Tensor& scores,
                 ThreadPool& threads);

}  // namespace sparsellm
