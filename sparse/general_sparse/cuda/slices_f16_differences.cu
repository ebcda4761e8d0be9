#include "sparse/general_sparse/cuda/slice_kernels.cuh"

namespace sparsellm::general_sparse {

SliceKernelChoice f16_differences_kernel(const SliceKernelKind& kind) {
  return compiled_slice_kernel<__half, PositionCode::i8>(kind);
}

}  // namespace sparsellm::general_sparse
