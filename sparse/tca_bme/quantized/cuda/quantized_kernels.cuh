#pragma once

#include "kernels/base/error.h"
#include "sparse/tca_bme/cuda/record_launch.cuh"
#include "sparse/tca_bme/quantized/cuda/byte_product.cuh"
#include "sparse/tca_bme/quantized/cuda/widened_product.cuh"

namespace sparsellm::tca_bme {

// choose.operator()<PRODUCT>() for the product that computes such a tile. Throws Error if there is
// none.
template <class Choose>
RecordKernel choose_quantized_kernel(const RecordMatrix& matrix, const TokenTile& tile, DType dtype,
                                     const Choose& choose) {
  using Values = QuantizedLayout::Values;
  require(dtype == DType::f16 || dtype == DType::bf16,
          "a record kernel computes f16 or bf16, not {}", name_of(dtype));
  require(matrix.elements == RecordElements::i8 || matrix.elements == RecordElements::f8,
          "no kernel for records of values of 4 bits");
  require(matrix.elements == RecordElements::i8 || !tile.bytes,
          "values of e4m3 are not multiplied in integers");
  const auto widened = [&]<class T, Values VALUES, int OFFSETS>() {
    switch (tile.tiles) {
      case 1:
        return choose.template operator()<WidenedProduct<T, VALUES, OFFSETS, 1>>();
      case 2:
        return choose.template operator()<WidenedProduct<T, VALUES, OFFSETS, 2>>();
      case 4:
        return choose.template operator()<WidenedProduct<T, VALUES, OFFSETS, 4>>();
      default:
        return choose.template operator()<WidenedProduct<T, VALUES, OFFSETS, 8>>();
    }
  };
  const auto for_offsets = [&]<class T, int OFFSETS>() {
    if (tile.bytes) {
      return tile.half ? choose.template operator()<ByteProduct<T, OFFSETS, 1>>()
                       : choose.template operator()<ByteProduct<T, OFFSETS, 2>>();
    }
    return matrix.elements == RecordElements::i8
               ? widened.template operator()<T, Values::i8, OFFSETS>()
               : widened.template operator()<T, Values::f8, OFFSETS>();
  };
  const auto for_type = [&]<class T>() {
    return matrix.chunk_offsets == 16 ? for_offsets.template operator()<T, 16>()
                                      : for_offsets.template operator()<T, 8>();
  };
  return dtype == DType::f16 ? for_type.template operator()<__half>()
                             : for_type.template operator()<__nv_bfloat16>();
}

}  // namespace sparsellm::tca_bme
