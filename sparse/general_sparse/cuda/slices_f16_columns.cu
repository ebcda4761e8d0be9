#include "sparse/general_sparse/cuda/slice_kernels.cuh"

namespace sparsellm::general_sparse {

SliceKernelChoice f16_columns_kernel(int shared_rows, int tile_tokens) {
  return compiled_slice_kernel<__half, PositionCode::u16>(shared_rows, tile_tokens);
}

}  // namespace sparsellm::general_sparse
