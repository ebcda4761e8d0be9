#pragma once

#include <cstdint>
#include <memory>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "sparse/encoded_weight.h"
#include "sparse/load_context.h"
#include "sparse/weight_matrix.h"

namespace sparsellm::general_sparse {

// Weights on a CUDA device: products of few tokens are those of slice_product_cuda.h, where there
// are kernels for the layout, others expand the weight (sparse/expand_matmul.h). In a CPU-only
// build all throw Error.

// A valid encoding, which is moved; it is copied by ctx.uploads.
std::unique_ptr<WeightMatrix> load_encoding_cuda(EncodedWeight e, const LoadContext& ctx);

// The same of encode(w) for speed, which is made on the device of ctx, where w is: f16 or bf16.
// Null where the host has to encode (encode_cuda.h); the weight has its values on return.
std::unique_ptr<WeightMatrix> encode_weight_cuda(const Tensor& w, const ExecContext& ctx);

}  // namespace sparsellm::general_sparse
