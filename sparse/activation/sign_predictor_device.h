#pragma once

#include <cstdint>

#include "sparse/activation/sign_predictor.h"

namespace sparsellm {

inline constexpr int64_t kMaxVoteColumns = int64_t{1} << 20;

// The implementations of the ops of sign_predictor.h, which have checked their arguments.
void predict_active_cpu(const Tensor& x, const SignWords& w, const SignPrediction& how,
                        Tensor active, ExecContext& ctx);
void count_votes_cpu(const Tensor& x, const SignWords& w, Votes votes, Tensor negative,
                     Tensor positive, ExecContext& ctx);
int64_t sign_predictor_workspace_bytes_cpu(int64_t columns, int64_t tokens);

void predict_active_cuda(const Tensor& x, const SignWords& w, const SignPrediction& how,
                         Tensor active, ExecContext& ctx);
// The same of up to eight tokens, in one launch. False, and nothing is done, where it does not fit:
// for GPUs of compute capability 9.0 and columns in multiples of 128, without zeros in W, all rows
// aligned to 16 bytes.
bool predict_few_cuda(const Tensor& x, const SignWords& w, const SignPrediction& how, Tensor active,
                      ExecContext& ctx);
void count_votes_cuda(const Tensor& x, const SignWords& w, Votes votes, Tensor negative,
                      Tensor positive, ExecContext& ctx);
int64_t sign_predictor_workspace_bytes_cuda(int64_t columns, int64_t tokens);

}  // namespace sparsellm
