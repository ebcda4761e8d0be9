#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/base/error.h"
#include "sparse/tca_bme/cuda/record_matmul_cuda.h"
#include "sparse/tca_bme/quantized/cuda/widened_product.cuh"

namespace sparsellm::tca_bme {

// choose.operator()<PRODUCT>() for the WidenedProduct that computes this many tiles of 8 tokens: 1,
// 2, 4 or else 8. Throws Error for values of 16 bits.
template <class Choose>
auto choose_widened_product(const RecordMatrix& matrix, int token_tiles, DType dtype,
                            const Choose& choose) {
  using Values = QuantizedLayout::Values;
  const auto for_tokens = [&]<class WIDENER>() {
    switch (token_tiles) {
      case 1:
        return choose.template operator()<WidenedProduct<WIDENER, 1>>();
      case 2:
        return choose.template operator()<WidenedProduct<WIDENER, 2>>();
      case 4:
        return choose.template operator()<WidenedProduct<WIDENER, 4>>();
      default:
        return choose.template operator()<WidenedProduct<WIDENER, 8>>();
    }
  };
  const bool dense = matrix.chunk_offsets == 0;
  const auto for_bytes = [&]<class T, Values VALUES>() {
    if constexpr (VALUES == Values::i8) {
      if (dense) {
        return for_tokens.template operator()<ByteWidener<T, VALUES, 0>>();
      }
    }
    return matrix.chunk_offsets == 16 ? for_tokens.template operator()<ByteWidener<T, VALUES, 16>>()
                                      : for_tokens.template operator()<ByteWidener<T, VALUES, 8>>();
  };
  const auto for_dtype = [&]<class T>() {
    switch (matrix.elements) {
      case RecordElements::i8:
        return for_bytes.template operator()<T, Values::i8>();
      case RecordElements::f8:
        return for_bytes.template operator()<T, Values::f8>();
      case RecordElements::i4:
        return dense ? for_tokens.template operator()<NibbleWidener<T, 0>>()
                     : for_tokens.template operator()<NibbleWidener<T, 8>>();
      default:
        fail("no kernel widens values of 16 bits");
    }
  };
  return dtype == DType::f16 ? for_dtype.template operator()<__half>()
                             : for_dtype.template operator()<__nv_bfloat16>();
}

}  // namespace sparsellm::tca_bme
