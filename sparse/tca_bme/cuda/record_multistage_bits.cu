#include "sparse/tca_bme/cuda/record_kernels.cuh"
#include "sparse/tca_bme/cuda/record_multistage.cuh"

namespace sparsellm::tca_bme {
namespace {

struct KernelOf {
  template <class T, int NT, int CH, bool PAIR>
  MultistageKernel operator()() const {
    using Decoder = RecordDecoder<CH, PAIR, BitCounter>;
    return &record_multistage_kernel<RecordProduct<T, NT, CH, PAIR, Decoder>>;
  }
};

}  // namespace

MultistageKernel bit_multistage_kernel(const RecordMatrix& matrix, int token_tiles, DType dtype) {
  return choose_record_kernel(matrix, token_tiles, dtype, KernelOf());
}

}  // namespace sparsellm::tca_bme
