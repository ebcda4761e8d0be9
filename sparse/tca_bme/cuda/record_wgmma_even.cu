#include "sparse/tca_bme/cuda/record_wgmma_kernels.cuh"

namespace sparsellm::tca_bme {

WgmmaKernel even_wgmma_kernel(const RecordMatrix& matrix, int tile, DType dtype) {
  return choose_wgmma_kernel<false>(matrix, tile, dtype);
}

}  // namespace sparsellm::tca_bme
