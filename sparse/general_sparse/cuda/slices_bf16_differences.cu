#include "sparse/general_sparse/cuda/slice_kernels.cuh"

namespace sparsellm::general_sparse {

SliceKernelChoice bf16_differences_kernel(const SliceKernelKind& kind) {
  return compiled_slice_kernel<__nv_bfloat16, PositionCode::i8>(kind);
}

}  // namespace sparsellm::general_sparse
