#include "tokenizer/tokenizer.h"

#include "kernels/base/error.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer_config.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/vocab_merges.h"

namespace sparsellm {

std::string Tokenizer::first_token_bytes(int32_t id) const {
  std::string bytes = token_bytes(id);
  if (bytes.starts_with(' ')) {
    bytes.erase(0, 1);
  }
  return bytes;
}

bool has_tokenizer(const OpenDirectory& directory) {
  return is_there(directory / "tokenizer.model") || is_there(directory / "tokenizer.json") ||
         is_there(directory / "vocab.json");
}

std::unique_ptr<Tokenizer> load_tokenizer(const OpenDirectory& directory) {
  const auto has = [&](const char* name) { return is_there(directory / name); };
  if (has("tokenizer.model")) {
    return load_sentencepiece(directory / "tokenizer.model", read_tokenizer_config(directory));
  }
  if (has("tokenizer.json")) {
    return load_tokenizer_json(directory / "tokenizer.json", read_tokenizer_config(directory));
  }
  if (has("vocab.json")) {
    return load_vocab_merges(directory / "vocab.json", directory / "merges.txt",
                             read_tokenizer_config(directory));
  }
  fail("{} has no tokenizer: neither tokenizer.model nor tokenizer.json nor vocab.json",
       directory.string());
}

std::vector<std::string> tokenizer_files(const OpenDirectory& directory) {
  const auto has = [&](const char* name) { return is_there(directory / name); };
  std::vector<std::string> names;
  if (has("tokenizer.model")) {
    names = {"tokenizer.model"};
  } else if (has("tokenizer.json")) {
    names = {"tokenizer.json"};
  } else {
    names = {"vocab.json", "merges.txt"};
  }
  for (const char* name : {"tokenizer_config.json", "added_tokens.json"}) {
    if (has(name)) {
      names.emplace_back(name);
    }
  }
  return names;
}

}  // namespace sparsellm
