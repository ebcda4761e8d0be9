#pragma once

#include <memory>

#include "sparse/load_context.h"
#include "sparse/record_upload.h"
#include "sparse/tiled_csl/host/tile_records.h"
#include "sparse/weight_matrix.h"

namespace sparsellm::tiled_csl {

// Weights of version 2 on a CUDA device: products are those of tile_matmul_cuda.h as far as a plan
// of tile_plan.h says, else the weight is expanded (sparse/expand_matmul.h). In a CPU-only build
// all throw Error.

using RecordUploads = RecordUploadsOf<RecordChecker>;

// Of parts whose records follow each other: they are copied, and checked, by ctx.uploads.
std::unique_ptr<WeightMatrix> load_tiles_cuda(const RecordUploads& parts, const LoadContext& ctx);

// Encodes w, which lies on the device of ctx, there (tile_encode_cuda.h).
std::unique_ptr<WeightMatrix> encode_weight_cuda(const Tensor& w, ExecContext& ctx);

}  // namespace sparsellm::tiled_csl
