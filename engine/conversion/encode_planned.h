#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/parallel.h"
#include "sparse/choice/format_rules.h"
#include "sparse/encoded_weight.h"
#include "sparse/prune/plan.h"
#include "sparse/quantize/quantized_matrix.h"

namespace sparsellm {

// What a weight is stored as.
struct PlannedEncoding {
  std::optional<EncodedWeight> encoded = {};    // nothing: it stays dense
  std::optional<QuantizedMatrix> rounded = {};  // what that holds, if its values are narrow
  std::string why_dense = {};                   // empty if the plan says dense
};

// What "auto" goes by: `joined` is the layer that the engine multiplies by as one, the weight and
// those that it is joined with, which so come to one format.
struct PlannedFor {
  const FormatRules& rules;
  WeightSize joined;
  // The codes and scales that the values are of, if they are quantised. They are kept where the
  // plan says "auto", "smallest", tca_bme or the dense format of their type, unless it names other
  // narrow values.
  const QuantizedMatrix* quantized = nullptr;
};

// values [rows, columns], f32, f16 or bf16, in host memory, in the format of the plan and its
// layout. A format that does not hold the values leaves them dense, and so does one of "auto" in
// which they take no fewer bytes. Where the plan asks for narrow values (sparse/records_choice.h),
// "auto" is choose_narrow_format() whatever the rules are, and "smallest" chooses among the formats
// that hold them. Throws Error for values that are to be rounded and are infinite or NaN.
PlannedEncoding encode_planned(const Tensor& values, const LayerPlan& plan, const PlannedFor& what,
                               ThreadPool& threads);

// Throws Error that names the weight unless the encoding, which is there, is valid and decodes to
// the same values, except for the signs of zeros; one with narrow values to the codes and scales
// that the values were rounded to.
void require_decodes(const PlannedEncoding& encoding, const Tensor& values, std::string_view name,
                     ThreadPool& threads);

}  // namespace sparsellm
