#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/parallel.h"
#include "sparse/choice/format_rules.h"
#include "sparse/encoded_weight.h"
#include "sparse/prune/plan.h"

namespace sparsellm {

// What a weight is stored as.
struct PlannedEncoding {
  std::optional<EncodedWeight> encoded = {};  // nothing: it stays dense
  std::string why_dense = {};                 // empty if the plan says dense
};

// What "auto" goes by: `joined` is the layer that the engine multiplies by as one, the weight and
// those that it is joined with, which so come to one format.
struct PlannedFor {
  const FormatRules& rules;
  WeightSize joined;
};

// values [rows, columns], f32, f16 or bf16, in host memory, in the format of the plan and its
// layout. A format that does not hold the values leaves them dense, and so does one of "auto" in
// which they take no fewer bytes.
PlannedEncoding encode_planned(const Tensor& values, const LayerPlan& plan, const PlannedFor& what,
                               ThreadPool& threads);

// Throws Error that names the weight unless the encoding is valid and decodes to the same values,
// except for the signs of zeros.
void require_decodes(const EncodedWeight& encoded, const Tensor& values, std::string_view name,
                     ThreadPool& threads);

}  // namespace sparsellm
