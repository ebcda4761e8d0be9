#include "kernels/base/error.h"
#include "sparse/tca_bme/cuda/record_launch.cuh"
#include "sparse/tca_bme/cuda/record_matmul.cuh"
#include "sparse/tca_bme/quantized/cuda/quantized_kernels.cuh"
#include "sparse/tca_bme/quantized/cuda/widened_product.cuh"

namespace sparsellm::tca_bme {
namespace {

using Values = QuantizedLayout::Values;

// For uneven matrices alone, since those take any: integers are for the products that count.
template <class WIDENER, int NT>
RecordKernel kernel_of() {
  return reinterpret_cast<RecordKernel>(&record_matmul_kernel<WidenedProduct<WIDENER, NT>, true>);
}

template <class WIDENER>
RecordKernel widened_kernel_of(int token_tiles) {
  switch (token_tiles) {
    case 1:
      return kernel_of<WIDENER, 1>();
    case 2:
      return kernel_of<WIDENER, 2>();
    case 4:
      return kernel_of<WIDENER, 4>();
    default:
      return kernel_of<WIDENER, 8>();
  }
}

template <class T, Values VALUES>
RecordKernel byte_kernel_of(const RecordMatrix& matrix, int token_tiles) {
  return matrix.chunk_offsets == 16 ? widened_kernel_of<ByteWidener<T, VALUES, 16>>(token_tiles)
                                    : widened_kernel_of<ByteWidener<T, VALUES, 8>>(token_tiles);
}

template <class T>
RecordKernel kernel_for(const RecordMatrix& matrix, int token_tiles) {
  switch (matrix.elements) {
    case RecordElements::i8:
      return byte_kernel_of<T, Values::i8>(matrix, token_tiles);
    case RecordElements::f8:
      return byte_kernel_of<T, Values::f8>(matrix, token_tiles);
    case RecordElements::i4:
      return widened_kernel_of<NibbleWidener<T>>(token_tiles);
    default:
      fail("no kernel widens values of 16 bits");
  }
}

}  // namespace

RecordKernel widened_kernel(const RecordMatrix& matrix, const TokenTile& tile, DType dtype) {
  return dtype == DType::f16 ? kernel_for<__half>(matrix, tile.tiles)
                             : kernel_for<__nv_bfloat16>(matrix, tile.tiles);
}

}  // namespace sparsellm::tca_bme
