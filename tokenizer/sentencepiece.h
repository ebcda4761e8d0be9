#pragma once

#include <memory>

#include "kernels/base/open_directory.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_config.h"

namespace sparsellm {

// The tokenizer.model of Llama 1 and 2. Texts get a dummy space in front, as the model file says,
// and BOS unless the config says otherwise. Behind an added or control token that was found in the
// text there is no dummy space, unless the config says "legacy". Throws Error that names the file
// for one that is damaged or of another kind.
std::unique_ptr<Tokenizer> load_sentencepiece(const InputFile& file, const TokenizerConfig& config);

}  // namespace sparsellm
