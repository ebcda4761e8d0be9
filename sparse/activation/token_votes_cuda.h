#pragma once

#include <cstdint>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "sparse/activation/cuda_workspace.h"
#include "sparse/activation/sign_predictor.h"

// The votes of tokens on CUDA (sparse/activation/sign_predictor.h), as bytes.
namespace sparsellm::token_votes {

// The votes of x [tokens, columns], f16 or bf16 of any alignment, in the order that
// sparse/activation/cuda/vote_products.cuh has them in, into votes u8 [byte_count(columns,
// tokens)]; what belongs to no word of a row, and to tokens that are not there, is not written.
// And i32 totals [tokens, 2]: how much all votes of a token count, and how much more those of
// positive x_j than those of negative ones. Both are contiguous. At most kMaxVoteColumns.
void write_bytes_cuda(const Tensor& x, Votes how, const Tensor& votes, const Tensor& totals,
                      ExecContext& ctx);

}  // namespace sparsellm::token_votes
