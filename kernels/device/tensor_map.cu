#include <cuda_runtime.h>

#include "kernels/base/driver_function.cuh"
#include "kernels/device/tensor_map.h"

namespace sparsellm {

CUtensorMap map_rows(const MappedRows& rows, int box_rows) {
  static const auto encode =
      driver_function<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled", 12000);
  CUtensorMap map;
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(rows.columns),
                              static_cast<cuuint64_t>(rows.rows)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(rows.stride) * sizeof(uint16_t)};
  const cuuint32_t box[2] = {kTensorBoxColumns, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t step[2] = {1, 1};
  // No promotion: where each row of a box asks the memory for 256 bytes, half of them for another
  // box, a stream of weights is 8 % slower (docs/notes/dense.md).
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, const_cast<void*>(rows.data), size, stride,
             box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(status == CUDA_SUCCESS, "no tensor map of {} x {} elements, rows {} apart: CUDA error {}",
          rows.rows, rows.columns, rows.stride, static_cast<int>(status));
  return map;
}

}  // namespace sparsellm
