#pragma once

#include "kernels/base/error.h"
#include "sparse/tca_bme/cuda/record_matmul_cuda.h"
#include "sparse/tca_bme/cuda/record_wgmma.cuh"

namespace sparsellm::tca_bme {

using WgmmaKernel = void (*)(TileParameters, CUtensorMap);

// Which kernel computes tiles of 32, 64, 128 or 256 tokens: for matrices whose records are
// about as large, and for uneven ones. Throws Error for a layout that there is no kernel for.
WgmmaKernel even_wgmma_kernel(const RecordMatrix& matrix, int tile, DType dtype);
WgmmaKernel uneven_wgmma_kernel(const RecordMatrix& matrix, int tile, DType dtype);
// Of i8, dense or not, in tiles of 16, 32 or 64 tokens.
WgmmaKernel byte_wgmma_kernel(const RecordMatrix& matrix, int tile, DType dtype, bool uneven);
// Of f8 and i4, in tiles of 32, 64 or 128 tokens, and of i8 of 128; of i4 and i8 dense ones, too.
WgmmaKernel widened_wgmma_kernel(const RecordMatrix& matrix, int tile, DType dtype, bool uneven);

template <class T, int N, bool UNEVEN>
WgmmaKernel choose_wgmma_kernel(const RecordMatrix& matrix) {
  if (matrix.pair) {
    require(matrix.chunks == 8, "pair records are 8 chunks wide, not {}", matrix.chunks);
    return &record_wgmma_kernel<WgmmaProduct<T, N, 8, true>, UNEVEN>;
  }
  require(matrix.chunks == 4 || matrix.chunks == 8, "records are 4 or 8 chunks wide, not {}",
          matrix.chunks);
  return matrix.chunks == 4 ? &record_wgmma_kernel<WgmmaProduct<T, N, 4, false>, UNEVEN>
                            : &record_wgmma_kernel<WgmmaProduct<T, N, 8, false>, UNEVEN>;
}

template <bool UNEVEN>
WgmmaKernel choose_wgmma_kernel(const RecordMatrix& matrix, int tile, DType dtype) {
  const auto choose = [&]<class T>() {
    switch (tile) {
      case 32:
        return choose_wgmma_kernel<T, 32, UNEVEN>(matrix);
      case 64:
        return choose_wgmma_kernel<T, 64, UNEVEN>(matrix);
      case 128:
        return choose_wgmma_kernel<T, 128, UNEVEN>(matrix);
      default:
        return choose_wgmma_kernel<T, 256, UNEVEN>(matrix);
    }
  };
  return dtype == DType::f16 ? choose.template operator()<__half>()
                             : choose.template operator()<__nv_bfloat16>();
}

}  // namespace sparsellm::tca_bme
