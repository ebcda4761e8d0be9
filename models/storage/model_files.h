#pragma once

#include <string_view>

namespace sparsellm {

// Whether a model without this file is not the same model: what Hugging Face programs read beside
// the weights, and what the authors say of their use.
bool is_companion_file(std::string_view name);

// Whether it is one of these, and of the tokenizer.
bool is_tokenizer_file(std::string_view name);

// Whether a conversion writes a file of this name: companions, weights and their index, the model
// card, the manifest.
bool is_converted_file(std::string_view name);

}  // namespace sparsellm
