#pragma once

#include <memory>
#include <string_view>

#include "sparse/load_context.h"
#include "sparse/tca_bme/format/records_for.h"
#include "sparse/tca_bme/host/record_uploads.h"
#include "sparse/tca_bme/quantized/quantized_choice.h"
#include "sparse/weight_matrix.h"

namespace sparsellm::tca_bme {

// Weights of versions 2 and 3 on a CUDA device: for few tokens the product decodes records, for
// more it does so for tiles of them where there are products of warpgroups, and for many the
// records are expanded (record_plan.h). In a CPU-only build all throw Error.

// Of parts that can_be_joined(): their records are copied, and checked, by ctx.uploads.
std::unique_ptr<WeightMatrix> load_records_cuda(const RecordUploads& parts, const LoadContext& ctx);
std::unique_ptr<WeightMatrix> load_quantized_cuda(const QuantizedUploads& parts,
                                                  const LoadContext& ctx);

// Encodes w, which lies on the device of ctx, there (record_encode_cuda.h).
std::unique_ptr<WeightMatrix> encode_weight_cuda(const Tensor& w, RecordsFor goal,
                                                 ExecContext& ctx);
// The same with narrow values, which the format holds (sparse/quantize/cuda/device_quantization.h).
std::unique_ptr<WeightMatrix> encode_quantized_weight_cuda(const Tensor& w, std::string_view format,
                                                           const QuantizedChoice& values,
                                                           ExecContext& ctx);

}  // namespace sparsellm::tca_bme
