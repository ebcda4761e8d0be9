#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/base/error.h"
#include "sparse/tca_bme/cuda/record_matmul_cuda.h"

namespace sparsellm::tca_bme {

// choose.operator()<T, NT, CH, PAIR>() for the kernel that computes this many tiles of 8 tokens: 1,
// 2, 4 or else 8. Throws Error for a layout that there is no kernel for.
template <class Choose>
auto choose_record_kernel(const RecordMatrix& matrix, int token_tiles, DType dtype,
                          const Choose& choose) {
  require(dtype == DType::f16 || dtype == DType::bf16,
          "a record kernel computes f16 or bf16, not {}", name_of(dtype));
  require(matrix.chunks == 8 || (matrix.chunks == 4 && !matrix.pair),
          "no kernel for records of {} chunks of {}", matrix.chunks,
          matrix.pair ? "pairs" : "single values");
  const auto for_layout = [&]<class T, int NT>() {
    return matrix.pair          ? choose.template operator()<T, NT, 8, true>()
           : matrix.chunks == 4 ? choose.template operator()<T, NT, 4, false>()
                                : choose.template operator()<T, NT, 8, false>();
  };
  const auto for_tokens = [&]<class T>() {
    switch (token_tiles) {
      case 1:
        return for_layout.template operator()<T, 1>();
      case 2:
        return for_layout.template operator()<T, 2>();
      case 4:
        return for_layout.template operator()<T, 4>();
      default:
        return for_layout.template operator()<T, 8>();
    }
  };
  return dtype == DType::f16 ? for_tokens.template operator()<__half>()
                             : for_tokens.template operator()<__nv_bfloat16>();
}

}  // namespace sparsellm::tca_bme
