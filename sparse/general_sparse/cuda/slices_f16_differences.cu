#include "sparse/general_sparse/cuda/slice_kernels.cuh"

namespace sparsellm::general_sparse {

SliceKernelChoice f16_differences_kernel(int shared_rows, int tile_tokens) {
  return compiled_slice_kernel<__half, PositionCode::i8>(shared_rows, tile_tokens);
}

}  // namespace sparsellm::general_sparse
