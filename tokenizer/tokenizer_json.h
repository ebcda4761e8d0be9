#pragma once

#include <memory>

#include "kernels/base/open_directory.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_config.h"

namespace sparsellm {

// The tokenizer.json of Hugging Face, as far as it describes BPE, of bytes or of characters. Throws
// Error that names the file and the key for anything else that would change the ids or the text.
// "truncation" and "padding" are not looked at: they are settings of the program that saved the
// file. BOS and EOS are those of the post-processor, unless the config says add_bos_token or
// add_eos_token.
std::unique_ptr<Tokenizer> load_tokenizer_json(const InputFile& file,
                                               const TokenizerConfig& config);

}  // namespace sparsellm
