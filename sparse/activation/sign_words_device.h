#pragma once

#include "sparse/activation/sign_words.h"

namespace sparsellm {

// The implementation of pack_sign_words() on CUDA; the weight has been checked.
OwnedSignWords pack_sign_words_cuda(const Tensor& w, ExecContext& ctx);

}  // namespace sparsellm
