#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "sparse/activation/sign_predictor.h"

namespace sparsellm::token_votes {

// pack() (sparse/activation/token_votes.h) on CUDA, with the same bits: the votes of the tokens of
// x [tokens, columns], f16 or bf16, into words u32 [tokens, words_of(columns, votes)], and how much
// all votes of a token count into totals i32 [tokens]; both contiguous. At most kMaxVoteColumns.
void pack_cuda(const Tensor& x, Votes votes, const Tensor& words, const Tensor& totals,
               ExecContext& ctx);

}  // namespace sparsellm::token_votes
