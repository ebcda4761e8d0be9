#include "tokenizer/byte_level.h"

#include "tokenizer/bpe_tokenizer.h"

namespace sparsellm {

std::unique_ptr<Tokenizer> make_byte_level_tokenizer(const ByteLevelParts& parts) {
  return make_bpe_tokenizer({.source = parts.source,
                             .normalizer = {},
                             .pretokenizer = parts.pretokenizer,
                             .model = parts.model,
                             .decoder = {.byte_level = true},
                             .special_tokens = parts.special_tokens,
                             .frame = parts.frame});
}

}  // namespace sparsellm
