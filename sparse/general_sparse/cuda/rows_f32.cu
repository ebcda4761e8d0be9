#include "sparse/general_sparse/cuda/row_kernels.cuh"

namespace sparsellm::general_sparse {

RowKernelChoice f32_row_kernel(const RowKernelKind& kind, int tokens) {
  return compiled_row_kernel<float>(kind, tokens);
}

}  // namespace sparsellm::general_sparse
