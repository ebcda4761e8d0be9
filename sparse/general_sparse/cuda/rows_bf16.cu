#include "sparse/general_sparse/cuda/row_kernels.cuh"

namespace sparsellm::general_sparse {

RowKernelChoice bf16_row_kernel(const RowKernelKind& kind, int tokens) {
  return compiled_row_kernel<__nv_bfloat16>(kind, tokens);
}

}  // namespace sparsellm::general_sparse
