#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/base/exec.h"
#include "kernels/base/neuron_counters.h"
#include "kernels/base/tensor.h"
#include "sparse/activation/row_access.h"

namespace sparsellm {

// An MLP whose activation is relu or fatrelu, neuron by neuron: of a neuron that is zero for a
// token no weights are read for that token (SparseInfer, Shin et al., DATE 2025, section IV-B: what
// was predicted to be zero, and what turns out to be). The neurons are those of the rows that are
// given, all of an MLP's or some of them; y of the parts then add up (with one bias).
//
// x [tokens, in], h [tokens, neurons], y [tokens, out]: f32 on the CPU; on CUDA f16 or bf16, as the
// weights, with sums in f32, each result rounded once. A row of h or y has the same bits whatever
// the other rows are. On the CPU these are the bits that gemm() and activate_gated() give it,
// whatever the threads and the instruction set, as long as no weight is infinite or NaN. A neuron
// that is zero adds nothing to y, and is +0 in h. NaN is not zero. Biases have any floating dtype,
// or are empty.
//
// On CUDA rows are those of DenseRows, and nothing is allocated or waits for the host: the ops may
// be captured in a graph.
//
// Errors: shapes and dtypes that do not fit; another activation; overlapping tensors; on CUDA, rows
// of another class.

struct GatedRows {
  const RowAccess& gate;  // [neurons, in]
  const RowAccess& up;    // [neurons, in]
  Tensor gate_bias;       // [neurons]
  Tensor up_bias;         // [neurons]
  Activation activation;
  bool relu_up = false;  // the second factor has a ReLU, too (dReLU, TurboSparse)
};

struct PlainRows {
  const RowAccess& up;  // [neurons, in]
  Tensor bias;          // [neurons]
  Activation activation;
};

// active u8 [tokens, neurons], 0: the neuron is taken to be zero, its rows are not read; or empty:
// all are computed. h must not overlap x.
//
// h = activation(gate_i x + gate_bias) * (up_i x + up_bias), or with relu_up activation(gate_i x +
// gate_bias) * relu(up_i x + up_bias), where up_i is read only if the first factor is not zero.
void gated_rows(const Tensor& x, const GatedRows& rows, const Tensor& active, Tensor h,
                ExecContext& ctx);
// h = activation(up_i x + bias), as in OPT.
void plain_rows(const Tensor& x, const PlainRows& rows, const Tensor& active, Tensor h,
                ExecContext& ctx);

// gated_rows() of gates that were computed before, g [tokens, neurons], with their bias, before or
// after the activation. h may be g.
struct UpRows {
  const RowAccess& up;  // [neurons, in]
  Tensor up_bias;       // [neurons]
  Activation activation;
  bool relu_up = false;
};
void up_rows(const Tensor& x, const UpRows& rows, const Tensor& g, Tensor h, ExecContext& ctx);

// y = sum over the neurons with h != 0 of h * wt_i, + bias [out], with wt [neurons, out] the
// transpose of the down projection. y must not overlap h.
void down_rows(const Tensor& h, const RowAccess& wt, const Tensor& bias, Tensor y,
               ExecContext& ctx);
// The same; it also counts the rows of h, its skipped neurons and those that are not zero.
void down_rows(const Tensor& h, const RowAccess& wt, const Tensor& bias, const NeuronTally& tally,
               Tensor y, ExecContext& ctx);
// What it takes from the workspace.
int64_t down_rows_workspace_bytes(Device device, int64_t neurons, int64_t out, int64_t tokens);

}  // namespace sparsellm
