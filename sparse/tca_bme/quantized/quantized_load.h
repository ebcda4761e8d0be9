#pragma once

#include <memory>
#include <span>

#include "sparse/format.h"

namespace sparsellm::tca_bme {

// WeightFormat::load_on_cuda() of parts that are all quantised, in this format.
std::unique_ptr<WeightMatrix> load_quantized(const WeightFormat& format,
                                             std::span<const WeightPart> parts,
                                             const LoadContext& ctx);

}  // namespace sparsellm::tca_bme
