#include "models/storage/model_files.h"

#include <algorithm>
#include <array>

#include "models/storage/model_manifest.h"

namespace sparsellm {

bool is_tokenizer_file(std::string_view name) {
  constexpr std::array<std::string_view, 9> kNames{
      "added_tokens.json",    "chat_template.jinja", "chat_template.json",      "merges.txt",
      "tokenizer.json",       "tokenizer.model",     "special_tokens_map.json", "vocab.json",
      "tokenizer_config.json"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

bool is_companion_file(std::string_view name) {
  return is_tokenizer_file(name) || name == "config.json" || name == "generation_config.json" ||
         name.starts_with("LICENSE") || name.starts_with("NOTICE") ||
         name.starts_with("USE_POLICY");
}

bool is_converted_file(std::string_view name) {
  return is_companion_file(name) || name == kModelCardName || name == kManifestName ||
         name == "model.safetensors.index.json" ||
         (name.starts_with("model") && name.ends_with(".safetensors"));
}

}  // namespace sparsellm
