#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokenizer/bpe_model.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/token_decoder.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_config.h"

namespace sparsellm {

// The parts of a BPE tokenizer, from whatever files: a text is normalized, cut into words, encoded.
struct BpeTokenizerParts {
  std::string source;  // the file that messages name
  std::vector<NormalizerStep> normalizer;
  PretokenizerOptions pretokenizer;
  BpeModel model;
  DecoderOptions decoder;
  SpecialTokens special_tokens;
  Frame frame;
};

// Throws Error if the parts do not fit together.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(const BpeTokenizerParts& parts);

}  // namespace sparsellm
