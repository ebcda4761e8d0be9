#pragma once

#include <cstdint>

#include "sparse/tca_bme/cuda/record_matmul_cuda.h"

namespace sparsellm {

// Whether matrix.multistage has room for a record and its columns of x for 64 tokens, in 64 KiB
// there is for any, and a kernel for it: bitmaps of 8- and 4-bit values need 1-bit products.
bool record_multistage_fits(const RecordMatrix& matrix);

// As record_matmul_cuda(), by copies and barriers that compute capability 8.0 has already;
// `workspace` is not needed, and the launch always begins when the one before it has ended. The
// order of the sums depends on the shape of the matrix and its layout alone, neither on the number
// of tokens nor on the device. Throws Error for what does not fit.
void record_multistage_cuda(const RecordMatrix& matrix, const CudaProductOperands& operands,
                            const ExecContext& ctx);

}  // namespace sparsellm
