#pragma once

#include "kernels/base/exec.h"
#include "sparse/general_sparse/cuda/device_encoding.h"
#include "sparse/weight_matrix.h"

namespace sparsellm::general_sparse {

// dense [rows.count, columns], contiguous, in the dtype of the encoding: these rows. For every
// layout of f16 and bf16.
void expand_cuda(const DeviceEncoding& encoding, Range rows, void* dense, const ExecContext& ctx);

}  // namespace sparsellm::general_sparse
