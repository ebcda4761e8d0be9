#include "sparse/tca_bme/cuda/record_kernels.cuh"
#include "sparse/tca_bme/cuda/record_launch.cuh"
#include "sparse/tca_bme/cuda/record_matmul.cuh"

namespace sparsellm::tca_bme {
namespace {

struct KernelOf {
  template <class T, int NT, int CH, bool PAIR>
  RecordKernel operator()() const {
    return reinterpret_cast<RecordKernel>(&record_matmul_kernel<T, NT, CH, PAIR, false>);
  }
};

}  // namespace

RecordKernel even_record_kernel(const RecordMatrix& matrix, int token_tiles, DType dtype) {
  return choose_record_kernel(matrix, token_tiles, dtype, KernelOf());
}

}  // namespace sparsellm::tca_bme
