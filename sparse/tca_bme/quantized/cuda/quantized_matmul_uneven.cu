#include "sparse/tca_bme/cuda/record_matmul.cuh"
#include "sparse/tca_bme/quantized/cuda/quantized_kernels.cuh"

namespace sparsellm::tca_bme {
namespace {

struct KernelOf {
  template <class PRODUCT>
  RecordKernel operator()() const {
    return reinterpret_cast<RecordKernel>(&record_matmul_kernel<PRODUCT, true>);
  }
};

}  // namespace

RecordKernel uneven_quantized_kernel(const RecordMatrix& matrix, const TokenTile& tile,
                                     DType dtype) {
  return choose_quantized_kernel(matrix, tile, dtype, KernelOf());
}

}  // namespace sparsellm::tca_bme
