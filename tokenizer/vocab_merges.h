#pragma once

#include <memory>

#include "kernels/base/open_directory.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_config.h"

namespace sparsellm {

// Byte-level BPE from vocab.json and merges.txt with the pre-tokenizer of GPT-2, which OPT shares.
// If the config names neither BOS nor EOS, "<|endoftext|>" is both (GPT-2), or else "</s>" is both
// and BOS stands in front of every text (OPT). Throws Error that names the file and the line or
// token, and for a tokenizer_class whose vocab.json is something else.
std::unique_ptr<Tokenizer> load_vocab_merges(const InputFile& vocab, const InputFile& merges,
                                             TokenizerConfig config);

}  // namespace sparsellm
