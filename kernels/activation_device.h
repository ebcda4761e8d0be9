#pragma once

#include "kernels/activation.h"

namespace sparsellm {

// The implementations of activate() and activate_gated(), which have checked their arguments. Those
// for the CPU have `active` of the tally and do not count.
void activate_cpu(const Activation& activation, const Tensor& active, Tensor x, ExecContext& ctx);
void activate_cuda(const Activation& activation, const NeuronTally& tally, Tensor x,
                   ExecContext& ctx);
void activate_gated_cpu(const Activation& activation, const Tensor& gate_up, const Tensor& active,
                        Tensor y, ExecContext& ctx);
void activate_gated_cuda(const Activation& activation, const Tensor& gate_up,
                         const NeuronTally& tally, Tensor y, ExecContext& ctx);

}  // namespace sparsellm
