#include "sparse/tca_bme/cuda/record_launch.cuh"
#include "sparse/tca_bme/cuda/record_matmul.cuh"
#include "sparse/tca_bme/quantized/cuda/choose_widened.cuh"
#include "sparse/tca_bme/quantized/cuda/quantized_kernels.cuh"

namespace sparsellm::tca_bme {
namespace {

// For uneven matrices alone, since those take any: integers are for the products that count.
struct WidenedKernelOf {
  template <class PRODUCT>
  RecordKernel operator()() const {
    return reinterpret_cast<RecordKernel>(&record_matmul_kernel<PRODUCT, true>);
  }
};

}  // namespace

RecordKernel widened_kernel(const RecordMatrix& matrix, const TokenTile& tile, DType dtype) {
  return choose_widened_product(matrix, tile.tiles, dtype, WidenedKernelOf());
}

}  // namespace sparsellm::tca_bme
