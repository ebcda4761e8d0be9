#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/parallel.h"
#include "sparse/encoded_weight.h"

namespace sparsellm {

// What a weight is stored as.
struct PlannedEncoding {
  std::optional<EncodedWeight> encoded = {};  // nothing: it stays dense
  std::string why_dense = {};                 // empty if the plan says dense
};

// values [rows, columns], f32, f16 or bf16, in host memory. `format` is a name of
// sparse/registry.h, kAutoFormat or kSmallestFormat; a format that does not hold the values leaves
// them dense.
PlannedEncoding encode_planned(const Tensor& values, std::string_view format, ThreadPool& threads);

// Throws Error that names the weight unless the encoding is valid and decodes to the same values,
// except for the signs of zeros.
void require_decodes(const EncodedWeight& encoded, const Tensor& values, std::string_view name,
                     ThreadPool& threads);

}  // namespace sparsellm
