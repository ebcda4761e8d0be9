#include "sparse/tca_bme/cuda/record_wgmma.cuh"
#include "sparse/tca_bme/cuda/record_wgmma_kernels.cuh"
#include "sparse/tca_bme/quantized/cuda/byte_wgmma_product.cuh"

namespace sparsellm::tca_bme {
namespace {

template <class T, int N, int OFFSETS>
WgmmaKernel byte_kernel_of(bool uneven) {
  if constexpr (OFFSETS == 0) {
    require(!uneven, "no kernel for dense records of several sizes");
  } else if (uneven) {
    return &record_wgmma_kernel<ByteWgmmaProduct<T, N, OFFSETS>, true>;
  }
  return &record_wgmma_kernel<ByteWgmmaProduct<T, N, OFFSETS>, false>;
}

template <class T, int N>
WgmmaKernel byte_kernel_for(int offsets, bool uneven) {
  return offsets == 0    ? byte_kernel_of<T, N, 0>(uneven)
         : offsets == 16 ? byte_kernel_of<T, N, 16>(uneven)
                         : byte_kernel_of<T, N, 8>(uneven);
}

template <class T>
WgmmaKernel byte_kernel_for_tile(int tile, int offsets, bool uneven) {
  switch (tile) {
    case 16:
      return byte_kernel_for<T, 16>(offsets, uneven);
    case 32:
      return byte_kernel_for<T, 32>(offsets, uneven);
    default:
      return byte_kernel_for<T, 64>(offsets, uneven);
  }
}

}  // namespace

WgmmaKernel byte_wgmma_kernel(const RecordMatrix& matrix, int tile, DType dtype, bool uneven) {
  return dtype == DType::f16
             ? byte_kernel_for_tile<__half>(tile, matrix.chunk_offsets, uneven)
             : byte_kernel_for_tile<__nv_bfloat16>(tile, matrix.chunk_offsets, uneven);
}

}  // namespace sparsellm::tca_bme
