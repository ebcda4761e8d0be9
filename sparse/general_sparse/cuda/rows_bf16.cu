#include "sparse/general_sparse/cuda/row_kernels.cuh"

namespace sparsellm::general_sparse {

RowKernelChoice bf16_row_kernel(bool wide_positions, bool single_entries, int tokens) {
  return compiled_row_kernel<__nv_bfloat16>(wide_positions, single_entries, tokens);
}

}  // namespace sparsellm::general_sparse
