#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kernels/base/json_reader.h"
#include "models/config.h"

namespace sparsellm {

// Keys by which the code of other families (MiniCPM, Granite, Cohere, Gemma 2, OLMo) scales, clips
// or normalises what Llama and OPT leave alone. A checkpoint that has one of them, and not with the
// value that changes nothing, was perhaps trained with such code.
//
// `json` is a config.json and `config` what has been read of it. Both functions throw Error for a
// value of the wrong type.

// For an architecture whose code in transformers ignores such keys, and code that comes with the
// checkpoint (auto_map), as the engine does: a line that names them; empty if there are none.
std::string ignored_keys_warning(const JsonValue& json, const ModelConfig& config);

// For an architecture whose code comes with the checkpoint: throws Error if there is such a key,
// except the keys that its own reader reads (Architecture::own_keys).
void refuse_foreign_keys(const JsonValue& json, const ModelConfig& config,
                         std::span<const std::string_view> own_keys);

}  // namespace sparsellm
