#include "sparse/general_sparse/cuda/general_workspace.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/workspace.h"
#include "sparse/expand_matmul.h"

namespace sparsellm::general_sparse {

int64_t slice_workspace_bytes(int64_t rows, int64_t panels, int64_t tokens) {
  if (panels <= 1) {
    return 0;
  }
  const int64_t padded = (tokens + kMostTileTokens - 1) / kMostTileTokens * kMostTileTokens;
  return checked_mul(checked_mul(panels, rows, "partial sums"), padded * int64_t{sizeof(float)},
                     "partial sums");
}

int64_t with_expansion(int64_t kernel_bytes, int64_t rows, int64_t columns, int64_t tokens) {
  const int64_t single = std::max(expand_single_piece_workspace_bytes(rows, columns), kernel_bytes);
  return tokens <= kMostKernelTokens
             ? single
             : std::max(single, expand_matmul_workspace_bytes(rows, columns));
}

int64_t slices_or_expansion_bytes(int64_t rows, int64_t columns, int64_t panels, int64_t tokens) {
  const int64_t bytes = slice_workspace_bytes(rows, panels, std::min(tokens, kMostKernelTokens));
  return with_expansion(Workspace::tensor_bytes(DType::u8, {bytes}), rows, columns, tokens);
}

}  // namespace sparsellm::general_sparse
