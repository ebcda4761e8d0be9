#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/base/upload.h"
#include "sparse/encoded_weight.h"
#include "sparse/weight_matrix.h"

namespace sparsellm::tca_bme {

// Weights of version 2 on a CUDA device: for few tokens the product decodes records, for more it
// does so for tiles of them where there are products of warpgroups, and for many the records are
// expanded (record_plan.h). In a CPU-only build all throw Error.

// Of a valid encoding.
std::unique_ptr<WeightMatrix> load_records_cuda(const EncodedWeight& e, Device device);

// As WeightFormat::prepare(): nothing if the layouts differ, or the rows of a part but the last are
// no multiple of 64.
std::unique_ptr<WeightMatrix> prepare_records_cuda(std::span<const EncodedWeight* const> parts,
                                                   Device device, std::vector<Upload>& copies);

// Encodes w, which lies on the device of ctx, there (record_encode_cuda.h).
std::unique_ptr<WeightMatrix> encode_weight_cuda(const Tensor& w, ExecContext& ctx);

// By the fields of e but its parts.
int64_t records_workspace_bytes_cuda(const EncodedWeight& e, Device device, int64_t tokens,
                                     Sums sums);

}  // namespace sparsellm::tca_bme
