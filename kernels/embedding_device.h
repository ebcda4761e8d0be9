#pragma once

#include "kernels/embedding.h"

namespace sparsellm {

// The implementations of embedding(), which has checked their arguments; the values of the
// indices are theirs to check.
void embedding_cpu(const Tensor& ids, const Tensor& positions, const EmbeddingTables& tables,
                   Tensor y, ExecContext& ctx);
void embedding_cuda(const Tensor& ids, const Tensor& positions, const EmbeddingTables& tables,
                    Tensor y, ExecContext& ctx);

}  // namespace sparsellm
