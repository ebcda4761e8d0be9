#pragma once

#include "sparse/tca_bme/cuda/record_matmul_cuda.h"
#include "sparse/weight_matrix.h"

namespace sparsellm {

// dense [rows.count, columns], contiguous, f16 or bf16 as the values are: these rows of the matrix.
// Enqueues one kernel, with as many blocks as the multiprocessors of the device hold at once; may
// be captured in a graph. Fastest if `dense` is aligned to 16 bytes and the columns are a multiple
// of 8.
void record_expand_cuda(const RecordMatrix& matrix, Range rows, void* dense, DType dtype,
                        int multiprocessors, const ExecContext& ctx);

}  // namespace sparsellm
