#pragma once

#include <cstdint>
#include <string_view>

namespace sparsellm {

struct ExecContext;  // kernels/base/exec.h
class Tensor;        // kernels/base/tensor.h
struct NeuronTally;  // kernels/base/neuron_counters.h

// An element-wise non-linearity. NaN stays NaN; at -infinity all but `none` are 0, their limit.
struct Activation {
  enum class Kind : uint8_t {
    none,
    relu,       // max(x, 0)
    gelu,       // x * Phi(x), with the error function
    gelu_tanh,  // x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))
    silu,       // x * sigmoid(x)
    fatrelu,    // x if x > threshold, else 0 (ProSparse, Song et al. 2024, section 3.3)
  };
  Kind kind = Kind::none;
  float threshold = 0.0f;  // of fatrelu

  friend bool operator==(const Activation&, const Activation&) = default;
};

std::string_view name_of(Activation::Kind kind);

// x [tokens, features], in place.
void activate(const Activation& activation, Tensor x, ExecContext& ctx);

// y [tokens, features] = activation(gate) * up, where gate_up [tokens, 2 * features] holds gate in
// its first and up in its second half. y must not overlap gate_up.
void activate_gated(const Activation& activation, const Tensor& gate_up, Tensor y,
                    ExecContext& ctx);

// The same of an MLP's neurons, the features, where tally.active, unless it is empty, is not 0. The
// other results are 0, whatever x or gate_up has in their place, NaN too. The results are counted;
// those that round to 0 are not active.
void activate(const Activation& activation, const NeuronTally& tally, Tensor x, ExecContext& ctx);
void activate_gated(const Activation& activation, const Tensor& gate_up, const NeuronTally& tally,
                    Tensor y, ExecContext& ctx);

}  // namespace sparsellm
