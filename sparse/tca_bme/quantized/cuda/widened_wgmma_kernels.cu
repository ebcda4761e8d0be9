#include "sparse/tca_bme/cuda/record_wgmma.cuh"
#include "sparse/tca_bme/cuda/record_wgmma_kernels.cuh"
#include "sparse/tca_bme/quantized/cuda/widened_wgmma_product.cuh"
#include "sparse/tca_bme/quantized/cuda/x_units.h"

namespace sparsellm::tca_bme {
namespace {

// UNEVEN for even matrices, too, to have half as many kernels; dense ones have records of one size.
template <class T, class WIDENER, bool UNEVEN>
WgmmaKernel large_tile_kernel() {
  return &record_wgmma_kernel<WidenedWgmmaProduct<T, WIDENER, kLargeUnitTile>, UNEVEN>;
}
template <class T, class WIDENER, bool UNEVEN>
WgmmaKernel widened_kernel_of(int tile) {
  switch (tile) {
    case 32:
      return &record_wgmma_kernel<WidenedWgmmaProduct<T, WIDENER, 32>, UNEVEN>;
    case 64:
      return &record_wgmma_kernel<WidenedWgmmaProduct<T, WIDENER, 64>, UNEVEN>;
    default:
      return large_tile_kernel<T, WIDENER, UNEVEN>();
  }
}

template <class T>
WgmmaKernel widened_kernel_for(const RecordMatrix& matrix, int tile) {
  using Values = QuantizedLayout::Values;
  const int offsets = matrix.chunk_offsets;
  switch (matrix.elements) {
    case RecordElements::i8:
      return offsets == 0    ? large_tile_kernel<T, ByteTileWidener<T, Values::i8, 0>, false>()
             : offsets == 16 ? large_tile_kernel<T, ByteTileWidener<T, Values::i8, 16>, true>()
                             : large_tile_kernel<T, ByteTileWidener<T, Values::i8, 8>, true>();
    case RecordElements::f8:
      return offsets == 16 ? widened_kernel_of<T, ByteTileWidener<T, Values::f8, 16>, true>(tile)
                           : widened_kernel_of<T, ByteTileWidener<T, Values::f8, 8>, true>(tile);
    default:
      return offsets == 0 ? widened_kernel_of<T, NibbleTileWidener<T, 0>, false>(tile)
                          : widened_kernel_of<T, NibbleTileWidener<T, 8>, true>(tile);
  }
}

}  // namespace

WgmmaKernel widened_wgmma_kernel(const RecordMatrix& matrix, int tile, DType dtype, bool uneven) {
  require(!uneven || matrix.chunk_offsets != 0, "no kernel for dense records of several sizes");
  return dtype == DType::f16 ? widened_kernel_for<__half>(matrix, tile)
                             : widened_kernel_for<__nv_bfloat16>(matrix, tile);
}

}  // namespace sparsellm::tca_bme
