#pragma once

#include <set>
#include <string>
#include <string_view>

#include "kernels/base/json_reader.h"

namespace sparsellm {

// What config.json of a model with encoded weights has under "quantization_config":
//   {"library": "sparsellm", "version": 1, "formats": ["tca_bme"]}
// Other programs know the architecture, but none of the tensors. The form is that which
// transformers ends with an error for: without a quant_method. Of one that it does not know it only
// warns, and goes on with random weights.
inline constexpr std::string_view kQuantizationConfig = "quantization_config";

// In JSON, of models whose weights are in these formats, which are some; `values`: the narrow types
// (sparse/records_choice.h) that some of them are rounded to, for readers: each weight says its
// own.
std::string sparse_config(const std::set<std::string>& formats,
                          const std::set<std::string>& values = {});

// Whether a quantization_config has this project's name, and no quant_method.
bool is_sparse_config(const JsonValue& value);
// Throws Error for one that is not complete, is of a newer version, or has a format or a key that
// is not known.
void check_sparse_config(const JsonValue& value);

}  // namespace sparsellm
