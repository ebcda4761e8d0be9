#pragma once

#include <cstdint>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"
#include "sparse/activation/sign_words.h"
#include "sparse/activation/votes.h"

namespace sparsellm {

// Predicts from signs alone which neurons of a ReLU layer are zero for a token (SparseInfer, Shin
// et al., DATE 2025, section IV-A). The elements of x [columns] vote on neuron i, row i of W: for a
// negative sum where the signs of x_j and W_ij differ, for a positive one where they are equal.
// Zeros of x, of W and the padding vote for neither side. With N_neg and N_pos votes
//   neuron i is skipped if and only if float(alpha) * float(N_pos) < float(N_neg),
// one rounded multiplication. (Listing 1 of the paper has the two cases the other way round.)
//
// A vote counts 1, or under Votes::weighted q_j:
// q_j = min(15, |x_j| * c), rounded to the nearest integer, ties to even: clipped at 3 times the
// RMS of x, for an outlier would silence the rest if x were scaled by its maximum. c is the same
// bits on every device. Each operation is rounded to f32, none are fused:
//   s = the sum of the squares x_j * x_j, in pairs of neighbours: elements 2k and 2k + 1 are added
//       up, then such sums, until one is left; beyond the last element there are zeros
//   c = 5 / sqrt(s / columns)
// If c is not finite and above 0, there are no votes of either kind, and no neuron is skipped: x is
// all zeros (or smaller than about 1e-23), or has a NaN, an infinity or squares beyond f32. Under
// Votes::sign, which needs no c, there are none if an x_j is NaN or infinite.
struct SignPrediction {
  Votes votes = Votes::weighted;
  float alpha = 1.0f;  // finite and above 0; the larger, the fewer neurons are skipped
};

// x [tokens, columns], f32 on the CPU, f16 or bf16 on CUDA, W as sign words, of all rows or some ->
// active u8 [tokens, rows]: 1, or 0 for a neuron that is skipped. A token's result does not depend
// on the others, and of the same x it is the same on every device. At most 2^20 columns, so that
// the sums of votes are exact in f32. On CUDA nothing is allocated or waits for the host, and with
// Launches::overlapping W may be read before what was enqueued before has ended: it is not what
// that writes.
void predict_active(const Tensor& x, const SignWords& w, const SignPrediction& how, Tensor active,
                    ExecContext& ctx);

// The sums of votes themselves, for calibration: negative, positive i32 [tokens, rows].
void count_votes(const Tensor& x, const SignWords& w, Votes votes, Tensor negative, Tensor positive,
                 ExecContext& ctx);

// What either takes from the workspace.
int64_t sign_predictor_workspace_bytes(Device device, int64_t columns, int64_t tokens);

}  // namespace sparsellm
