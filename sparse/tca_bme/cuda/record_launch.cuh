#pragma once

#include "sparse/tca_bme/cuda/record_choices.h"
#include "sparse/tca_bme/cuda/record_matmul.cuh"
#include "sparse/tca_bme/cuda/record_matmul_cuda.h"

namespace sparsellm::tca_bme {

// A record_matmul_kernel: of Parameters, or for uneven matrices of UnevenParameters.
using RecordKernel = const void*;

// Which kernel computes such a tile. Throws Error if there is none.
using RecordKernelFor = RecordKernel (*)(const RecordMatrix& matrix, const TokenTile& tile,
                                         DType dtype);
RecordKernel even_record_kernel(const RecordMatrix& matrix, const TokenTile& tile, DType dtype);
RecordKernel uneven_record_kernel(const RecordMatrix& matrix, const TokenTile& tile, DType dtype);
// Of version 3.
RecordKernel even_quantized_kernel(const RecordMatrix& matrix, const TokenTile& tile, DType dtype);
RecordKernel uneven_quantized_kernel(const RecordMatrix& matrix, const TokenTile& tile,
                                     DType dtype);

// record_matmul_cuda() by other kernels, which take the same parameters; nullptr: there is none.
struct RecordKernels {
  RecordKernelFor even = nullptr;
  RecordKernelFor uneven = nullptr;
};
void record_matmul_by(const RecordKernels& kernels, const RecordMatrix& matrix,
                      const CudaProductOperands& operands, const RecordMatmulConfig& config,
                      const ExecContext& ctx);

}  // namespace sparsellm::tca_bme
