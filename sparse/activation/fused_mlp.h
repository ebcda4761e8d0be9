#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/base/exec.h"
#include "kernels/base/neuron_counters.h"
#include "kernels/base/tensor.h"
#include "sparse/activation/sign_predictor.h"
#include "sparse/activation/sign_words.h"

namespace sparsellm {

// An MLP whose neurons are predicted from signs, in one launch (SparseInfer, Shin et al., DATE
// 2025, section IV-B: prediction, gate, up and product fused): for few tokens, on GPUs of compute
// capability 9.0. Weights of f16 or bf16, rows of neurons; biases of the same dtype, or empty.
struct FusedMlp {
  Tensor gate;            // [neurons, in]; empty: there is none, as in OPT
  Tensor up;              // [neurons, in]
  Tensor down;            // [neurons, out], the transpose of the down projection
  Tensor gate_bias;       // [neurons]
  Tensor up_bias;         // [neurons]
  Tensor down_bias;       // [out]
  SignWords signs;        // of the gate, or of up where there is none; empty: of exact
  Activation activation;  // relu or fatrelu
  bool relu_up = false;   // of a gated MLP: up has a ReLU, too
  SignPrediction prediction;
  // Where rows that are no padding, neurons that are skipped and neurons that are not zero are
  // counted, on the device; null: nowhere.
  NeuronCounters* counters = nullptr;
  // Of exact, without signs, gate and prediction: [tokens, neurons], what the gates of these tokens
  // are, with bias, before the activation. A neuron is active where they say so.
  Tensor gates = {};
};

// Tokens of a launch; more take several.
inline constexpr int64_t kFusedTokens = 8;

// Whether fused_mlp() takes it on this device: in and out multiples of 128 and of 8, all rows
// aligned to 16 bytes, no zeros among the weights that vote, not more than 65,520 neurons nor 9,216
// inputs or outputs, and at least half as many neurons as outputs.
bool fused_mlp_fits(const FusedMlp& mlp, const ExecContext& ctx);

// y [tokens, out] = down(h) + down_bias, with h = activation(gate x) * up x (relu_up: relu(up x)),
// or activation(up x),
// of the neurons that are not skipped (predict_active(); of exact: whose gate is not zero) and 0 of
// the others; h is rounded once. x [tokens, in] and y in the dtype of the weights; rows aligned to
// 16 bytes; y may be x.
// Rows of down whose h is zero may or may not be read.
// positions i32 [tokens]: a row of position -1 is padding and activates nothing; or empty: none is.
// Under Sums::batch_invariant a row of y has the same bits in any batch. An Error if it does not
// fit.
void fused_mlp(const Tensor& x, const Tensor& positions, const FusedMlp& mlp, Tensor y,
               ExecContext& ctx);

}  // namespace sparsellm
