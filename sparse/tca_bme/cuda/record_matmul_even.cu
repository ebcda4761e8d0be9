#include "sparse/tca_bme/cuda/record_kernels.cuh"
#include "sparse/tca_bme/cuda/record_launch.cuh"
#include "sparse/tca_bme/cuda/record_matmul.cuh"

namespace sparsellm::tca_bme {
namespace {

struct KernelOf {
  template <class T, int NT, int CH, bool PAIR>
  RecordKernel operator()() const {
    return reinterpret_cast<RecordKernel>(
        &record_matmul_kernel<RecordProduct<T, NT, CH, PAIR>, false>);
  }
};

}  // namespace

RecordKernel even_record_kernel(const RecordMatrix& matrix, const TokenTile& tile, DType dtype) {
  return choose_record_kernel(matrix, tile.tiles, dtype, KernelOf());
}

}  // namespace sparsellm::tca_bme
