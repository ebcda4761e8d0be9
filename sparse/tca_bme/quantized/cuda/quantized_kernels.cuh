#pragma once

#include "sparse/tca_bme/cuda/record_launch.cuh"

namespace sparsellm::tca_bme {

// RecordKernelFor of values of 8 bits that become 16 bits wide; for even and uneven matrices.
RecordKernel widened_kernel(const RecordMatrix& matrix, const TokenTile& tile, DType dtype);

}  // namespace sparsellm::tca_bme
