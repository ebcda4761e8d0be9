#include "models/storage/model_files.h"

#include <algorithm>
#include <array>

#include "models/storage/model_manifest.h"

namespace sparsellm {

bool is_companion_file(std::string_view name) {
  constexpr std::array<std::string_view, 11> kNames{"added_tokens.json",
                                                    "chat_template.jinja",
                                                    "chat_template.json",
                                                    "config.json",
                                                    "generation_config.json",
                                                    "merges.txt",
                                                    "special_tokens_map.json",
                                                    "tokenizer.json",
                                                    "tokenizer.model",
                                                    "tokenizer_config.json",
                                                    "vocab.json"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
         name.starts_with("LICENSE") || name.starts_with("NOTICE") ||
         name.starts_with("USE_POLICY");
}

bool is_converted_file(std::string_view name) {
  return is_companion_file(name) || name == kModelCardName || name == kManifestName ||
         name == "model.safetensors.index.json" ||
         (name.starts_with("model") && name.ends_with(".safetensors"));
}

}  // namespace sparsellm
