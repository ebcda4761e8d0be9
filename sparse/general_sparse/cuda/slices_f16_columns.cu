#include "sparse/general_sparse/cuda/slice_kernels.cuh"

namespace sparsellm::general_sparse {

SliceKernelChoice f16_columns_kernel(const SliceKernelKind& kind) {
  return compiled_slice_kernel<__half, PositionCode::u16>(kind);
}

}  // namespace sparsellm::general_sparse
