#pragma once

#include <optional>
#include <set>
#include <string>

#include "kernels/base/dtype.h"
#include "kernels/base/open_directory.h"
#include "models/activation_sparsity.h"

namespace sparsellm {

// What has become of a model's weights, as far as its config.json says it.
struct OutputWeights {
  bool had_bitmasks = false;          // compressed-tensors described the input
  std::optional<DType> dtype;         // f16 or bf16, if all were converted
  std::set<std::string> formats;      // the sparse ones of the output
  std::set<std::string> values = {};  // the narrow types that some weights have
  bool drops_alphas = false;          // activation sparsity `predict` of the input is not theirs
  std::optional<ActivationSparsity> sparsity = {};  // instead of the input's
};

// The text of the output's config.json: the input's with what is no longer true replaced, of how
// the weights are stored, in which dtype, and which activation sparsity they have. Nothing if the
// input's is true as it is. Throws Error for a file that cannot be read.
std::optional<std::string> output_config(const InputFile& input, const OutputWeights& weights);

}  // namespace sparsellm
