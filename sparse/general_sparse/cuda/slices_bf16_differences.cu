#include "sparse/general_sparse/cuda/slice_kernels.cuh"

namespace sparsellm::general_sparse {

SliceKernelChoice bf16_differences_kernel(int shared_rows, int tile_tokens) {
  return compiled_slice_kernel<__nv_bfloat16, PositionCode::i8>(shared_rows, tile_tokens);
}

}  // namespace sparsellm::general_sparse
