#include "kernels/base/error.h"
#include "sparse/tca_bme/cuda/record_launch.cuh"
#include "sparse/tca_bme/cuda/record_matmul.cuh"
#include "sparse/tca_bme/quantized/cuda/byte_product.cuh"
#include "sparse/tca_bme/quantized/cuda/nibble_product.cuh"
#include "sparse/tca_bme/quantized/cuda/quantized_kernels.cuh"

namespace sparsellm::tca_bme {
namespace {

template <class PRODUCT, int OFFSETS>
RecordKernel kernel_of(bool uneven) {
  if constexpr (OFFSETS == 0) {
    require(!uneven, "no kernel for dense records of several sizes");
  } else if (uneven) {
    return reinterpret_cast<RecordKernel>(&record_matmul_kernel<PRODUCT, true>);
  }
  return reinterpret_cast<RecordKernel>(&record_matmul_kernel<PRODUCT, false>);
}

template <class T, int OFFSETS>
RecordKernel nibble_kernel_of(const TokenTile& tile, bool uneven) {
  return tile.half         ? kernel_of<NibbleProduct<T, OFFSETS, 1>, OFFSETS>(uneven)
         : tile.tiles == 1 ? kernel_of<NibbleProduct<T, OFFSETS, 2>, OFFSETS>(uneven)
                           : kernel_of<NibbleProduct<T, OFFSETS, 4>, OFFSETS>(uneven);
}

template <class T, int OFFSETS>
RecordKernel byte_kernel_of(const TokenTile& tile, bool uneven) {
  return tile.half         ? kernel_of<ByteProduct<T, OFFSETS, 1>, OFFSETS>(uneven)
         : tile.tiles == 1 ? kernel_of<ByteProduct<T, OFFSETS, 2>, OFFSETS>(uneven)
                           : kernel_of<ByteProduct<T, OFFSETS, 4>, OFFSETS>(uneven);
}

template <class T>
RecordKernel kernel_for(const RecordMatrix& matrix, const TokenTile& tile, bool uneven) {
  if (matrix.elements == RecordElements::i4) {
    return matrix.chunk_offsets == 0 ? nibble_kernel_of<T, 0>(tile, uneven)
                                     : nibble_kernel_of<T, 8>(tile, uneven);
  }
  return matrix.chunk_offsets == 0    ? byte_kernel_of<T, 0>(tile, uneven)
         : matrix.chunk_offsets == 16 ? byte_kernel_of<T, 16>(tile, uneven)
                                      : byte_kernel_of<T, 8>(tile, uneven);
}

RecordKernel quantized_kernel(const RecordMatrix& matrix, const TokenTile& tile, DType dtype,
                              bool uneven) {
  require(dtype == DType::f16 || dtype == DType::bf16,
          "a record kernel computes f16 or bf16, not {}", name_of(dtype));
  if (!tile.bytes) {
    return widened_kernel(matrix, tile, dtype);
  }
  require(matrix.elements == RecordElements::i8 || matrix.elements == RecordElements::i4,
          "no kernel multiplies such records in integers");
  return dtype == DType::f16 ? kernel_for<__half>(matrix, tile, uneven)
                             : kernel_for<__nv_bfloat16>(matrix, tile, uneven);
}

}  // namespace

RecordKernel even_quantized_kernel(const RecordMatrix& matrix, const TokenTile& tile, DType dtype) {
  return quantized_kernel(matrix, tile, dtype, false);
}
RecordKernel uneven_quantized_kernel(const RecordMatrix& matrix, const TokenTile& tile,
                                     DType dtype) {
  return quantized_kernel(matrix, tile, dtype, true);
}

}  // namespace sparsellm::tca_bme
