#pragma once

#include <memory>
#include <string>

#include "tokenizer/bpe_model.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_config.h"

namespace sparsellm {

// The parts of a byte-level BPE tokenizer that does not normalize text.
struct ByteLevelParts {
  std::string source;  // the file that messages name
  BpeModel model;
  PretokenizerOptions pretokenizer;
  SpecialTokens special_tokens;
  Frame frame;
};

// Throws Error if the parts do not fit together.
std::unique_ptr<Tokenizer> make_byte_level_tokenizer(const ByteLevelParts& parts);

}  // namespace sparsellm
