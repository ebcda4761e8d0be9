#pragma once

#include "sparse/tca_bme/record_matmul.cuh"
#include "sparse/tca_bme/record_matmul_cuda.h"

namespace sparsellm::tca_bme {

using RecordKernel = void (*)(Parameters);

// Which kernel computes so many tiles of 8 tokens, 1, 2, 4 or 8. Throws Error if there is none.
using RecordKernelFor = RecordKernel (*)(const RecordMatrix& matrix, int token_tiles, DType dtype);

// record_matmul_cuda() by other kernels, which take the same parameters.
void record_matmul_by(RecordKernelFor kernel_for, const RecordMatrix& matrix,
                      const RecordMatmulOperands& operands, const RecordMatmulConfig& config,
                      cudaStream_t stream);

}  // namespace sparsellm::tca_bme
