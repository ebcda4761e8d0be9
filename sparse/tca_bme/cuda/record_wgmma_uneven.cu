#include "sparse/tca_bme/cuda/record_wgmma_kernels.cuh"

namespace sparsellm::tca_bme {

WgmmaKernel uneven_wgmma_kernel(const RecordMatrix& matrix, int tile, DType dtype) {
  return choose_wgmma_kernel<true>(matrix, tile, dtype);
}

}  // namespace sparsellm::tca_bme
