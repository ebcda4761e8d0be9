#include "tokenizer/tokenizer.h"

#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer_config.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/vocab_merges.h"

namespace sparsellm {

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& directory) {
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

}  // namespace sparsellm
