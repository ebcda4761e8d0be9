#include "kernels/activation.h"

#include <cmath>

#include "kernels/activation_device.h"
#include "kernels/checks.h"

namespace sparsellm {
namespace {

void check_threshold(std::string_view op, const Activation& activation) {
  require(std::isfinite(activation.threshold), "{}: the threshold of fatrelu is {}", op,
          activation.threshold);
}

void check_active(std::string_view op, const Tensor& active, const Tensor& result,
                  const ExecContext& ctx) {
  if (!active.empty()) {
    check_tensor({op, "active"}, active, Elements::u8, {result.size(0), result.size(1)}, ctx);
  }
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
  activate(activation, {}, x, ctx);
}

void activate(const Activation& activation, const Tensor& active, Tensor x, ExecContext& ctx) {
  check_threshold("activate", activation);
  check_tensor({"activate", "x"}, x, Elements::activation, {kAnySize, kAnySize}, ctx);
  check_active("activate", active, x, ctx);
  if (ctx.device.is_cuda()) {
    activate_cuda(activation, active, x, ctx);
  } else {
    activate_cpu(activation, active, x, ctx);
  }
}

void activate_gated(const Activation& activation, const Tensor& gate_up, Tensor y,
                    ExecContext& ctx) {
  activate_gated(activation, gate_up, {}, y, ctx);
}

void activate_gated(const Activation& activation, const Tensor& gate_up, const Tensor& active,
                    Tensor y, ExecContext& ctx) {
  check_threshold("activate_gated", activation);
  check_tensor({"activate_gated", "y"}, y, Elements::activation, {kAnySize, kAnySize}, ctx);
  check_tensor({"activate_gated", "gate_up"}, gate_up, Elements::activation,
               {y.size(0), 2 * y.size(1)}, ctx);
  check_same_dtype({"activate_gated", "gate_up and y"}, gate_up, y);
  check_disjoint({"activate_gated", "gate_up and y"}, gate_up, y);
  check_active("activate_gated", active, y, ctx);
  if (ctx.device.is_cuda()) {
    activate_gated_cuda(activation, gate_up, active, y, ctx);
  } else {
    activate_gated_cpu(activation, gate_up, active, y, ctx);
  }
}

}  // namespace sparsellm
