#pragma once

#include <optional>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "sparse/general_sparse/cuda/device_encoding.h"

namespace sparsellm::general_sparse {

// What encode() makes of w in the layout of choose_layout() for speed, the same bytes, on the CUDA
// device of ctx, and what kernels need beside it. w: f16 or bf16 [rows, columns] there; rows may be
// strided. Takes about an eighth of its memory besides what it returns; synchronises.
// Nothing where there are no elements, or more nonzeros or columns than the format holds. Throws
// Error for more entries than starts reach.
std::optional<DeviceEncoding> encode_cuda(const Tensor& w, const ExecContext& ctx);

}  // namespace sparsellm::general_sparse
