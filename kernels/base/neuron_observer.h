#pragma once

#include <cstdint>

#include "kernels/base/exec.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// Sees which neurons of MLPs are active, for calibration and evaluation of their prediction. MLPs
// with activation sparsity (models/sparse_mlp.h) call the one in their ExecContext with generated
// rows, on the CPU, in layers in which nothing is predicted: there values are exact.
class NeuronObserver {
 public:
  struct Neurons {
    int64_t layer = 0;
    int64_t first = 0;     // the number, in the layer, of the first neuron
    const Tensor& x;       // f32 [tokens, hidden], the input of the MLP; rows of different requests
    const Tensor& weight;  // [neurons, hidden] of the gate, or of a plain MLP's up; of any dtype
    // f32 [tokens, neurons], after the activation: not 0 is active. What is set to 0 counts as
    // zero.
    const Tensor& values;
  };

  virtual ~NeuronObserver() = default;
  // Whether it may be called by several ranks, as threads of one process: each with its neurons of
  // the same rows, and at once.
  virtual bool takes_ranks() const { return false; }
  // The tensors are valid during the call. The workspace of ctx has no room left for it.
  virtual void observe(const Neurons& neurons, ExecContext& ctx) = 0;
};

}  // namespace sparsellm
