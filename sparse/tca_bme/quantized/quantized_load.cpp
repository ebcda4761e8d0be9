#include "sparse/tca_bme/quantized/quantized_load.h"

#include "sparse/join_parts.h"
#include "sparse/tca_bme/cuda/record_weight_cuda.h"
#include "sparse/tca_bme/host/record_uploads.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"

namespace sparsellm::tca_bme {

std::unique_ptr<WeightMatrix> load_quantized(const WeightFormat& format,
                                             std::span<const WeightPart> parts,
                                             const LoadContext& ctx) {
  const QuantizedUploads uploads = record_uploads<QuantizedChecker>(parts);
  if (can_be_joined(uploads)) {
    return load_quantized_cuda(uploads, ctx);
  }
  return are_quantized_alike(weights_of(parts)) ? format.load(join_on_host(parts, ctx.threads), ctx)
                                                : join_on_device(format, parts, ctx);
}

}  // namespace sparsellm::tca_bme
