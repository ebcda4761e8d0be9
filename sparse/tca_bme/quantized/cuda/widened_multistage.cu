#include "sparse/tca_bme/cuda/record_multistage.cuh"
#include "sparse/tca_bme/quantized/cuda/choose_widened.cuh"

namespace sparsellm::tca_bme {
namespace {

struct WidenedMultistageKernelOf {
  template <class PRODUCT>
  MultistageKernel operator()() const {
    return &record_multistage_kernel<PRODUCT>;
  }
};

}  // namespace

MultistageKernel widened_multistage_kernel(const RecordMatrix& matrix, int token_tiles,
                                           DType dtype) {
  return choose_widened_product(matrix, token_tiles, dtype, WidenedMultistageKernelOf());
}

}  // namespace sparsellm::tca_bme
