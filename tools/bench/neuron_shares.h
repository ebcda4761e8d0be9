#pragma once

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "sparse/activation/sign_predictor.h"
#include "sparse/activation/sign_words.h"

namespace sparsellm {

// Shares of the neurons of an MLP for a token, as a benchmark with random weights wants them: of
// such weights half of the neurons are zero. Nothing is injected: alpha and the threshold of
// FATReLU are chosen so that real votes and real gates come to these shares.
struct NeuronShares {
  double predicted = 0.0;  // to be zero
  double zeros = 0.0;      // zero, with those that are predicted to be
};

// Throws Error unless 0 <= predicted <= zeros <= 1.
void check_shares(const NeuronShares& shares);

// All tensors are on the CPU. Both take the tokens together.

// With the alpha (of VoteHistogram's grid) whose share is the closest: x f32 [tokens, columns].
// Takes sign_predictor_workspace_bytes() from the workspace.
SignPrediction prediction_for(double predicted, Votes votes, const Tensor& x, const SignWords& w,
                              ExecContext& ctx);

// The threshold below which so many gates are that the share of zeros is right: gates f32
// [tokens, neurons], what FATReLU is applied to; active u8 [tokens, neurons], 0 where a neuron is
// predicted to be zero. It lies between two gates, and may be negative.
float threshold_for(double zeros, const Tensor& gates, const Tensor& active);

}  // namespace sparsellm
