#include "sparse/general_sparse/cuda/row_kernels.cuh"

namespace sparsellm::general_sparse {

RowKernelChoice f16_row_kernel(const RowKernelKind& kind, int tokens) {
  return compiled_row_kernel<__half>(kind, tokens);
}

}  // namespace sparsellm::general_sparse
