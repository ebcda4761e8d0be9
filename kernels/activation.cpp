#include "kernels/activation.h"

#include <cmath>

#include "kernels/activation_device.h"
#include "kernels/base/neuron_counters.h"
#include "kernels/checks.h"

namespace sparsellm {
namespace {

void check_threshold(std::string_view op, const Activation& activation) {
  require(std::isfinite(activation.threshold), "{}: the threshold of fatrelu is {}", op,
          activation.threshold);
}

}  // namespace

std::string_view name_of(Activation::Kind kind) {
  switch (kind) {
    case Activation::Kind::none:
      return "none";
    case Activation::Kind::relu:
      return "relu";
    case Activation::Kind::gelu:
      return "gelu";
    case Activation::Kind::gelu_tanh:
      return "gelu_tanh";
    case Activation::Kind::silu:
      return "silu";
    case Activation::Kind::fatrelu:
      return "fatrelu";
  }
  return "?";
}

void activate(const Activation& activation, Tensor x, ExecContext& ctx) {
  activate(activation, NeuronTally(), x, ctx);
}

void activate(const Activation& activation, const NeuronTally& tally, Tensor x, ExecContext& ctx) {
  check_threshold("activate", activation);
  check_tensor({"activate", "x"}, x, Elements::activation, {kAnySize, kAnySize}, ctx);
  check_tally("activate", tally, x, ctx);
  if (ctx.device.is_cuda()) {
    activate_cuda(activation, tally, x, ctx);
  } else {
    activate_cpu(activation, tally.active, x, ctx);
    count_neurons_cpu(x, tally);
  }
}

void activate_gated(const Activation& activation, const Tensor& gate_up, Tensor y,
                    ExecContext& ctx) {
  activate_gated(activation, gate_up, NeuronTally(), y, ctx);
}

void activate_gated(const Activation& activation, const Tensor& gate_up, const NeuronTally& tally,
                    Tensor y, ExecContext& ctx) {
  check_threshold("activate_gated", activation);
  check_tensor({"activate_gated", "y"}, y, Elements::activation, {kAnySize, kAnySize}, ctx);
  check_tensor({"activate_gated", "gate_up"}, gate_up, Elements::activation,
               {y.size(0), 2 * y.size(1)}, ctx);
  check_same_dtype({"activate_gated", "gate_up and y"}, gate_up, y);
  check_disjoint({"activate_gated", "gate_up and y"}, gate_up, y);
  check_tally("activate_gated", tally, y, ctx);
  if (ctx.device.is_cuda()) {
    activate_gated_cuda(activation, gate_up, tally, y, ctx);
  } else {
    activate_gated_cpu(activation, gate_up, tally.active, y, ctx);
    count_neurons_cpu(y, tally);
  }
}

}  // namespace sparsellm
