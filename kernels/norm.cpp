#include "kernels/norm.h"

#include "kernels/checks.h"
#include "kernels/norm_device.h"

namespace sparsellm {
namespace {

void check(std::string_view op, const Tensor& x, const Tensor& weight, const Tensor& bias,
           float epsilon, const Tensor& y, const ExecContext& ctx) {
  check_tensor({op, "x"}, x, Elements::activation, {kAnySize, kAnySize}, ctx);
  check_tensor({op, "y"}, y, Elements::activation, {x.size(0), x.size(1)}, ctx);
  check_same_dtype({op, "x and y"}, x, y);
  check_same_or_disjoint({op, "x and y"}, x, y);
  check_tensor({op, "weight"}, weight, Elements::floating, {x.size(1)}, ctx);
  if (!bias.empty()) {
    check_tensor({op, "bias"}, bias, Elements::floating, {x.size(1)}, ctx);
  }
  require(epsilon >= 0.0f, "{}: epsilon is {}", op, epsilon);
}

}  // namespace

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon, Tensor y,
                ExecContext& ctx) {
  check("layer_norm", x, weight, bias, epsilon, y, ctx);
  if (ctx.device.is_cuda()) {
    layer_norm_cuda(x, weight, bias, epsilon, y, ctx);
  } else {
    layer_norm_cpu(x, weight, bias, epsilon, y, ctx);
  }
}

void rms_norm(const Tensor& x, const Tensor& weight, float epsilon, Tensor y, ExecContext& ctx) {
  check("rms_norm", x, weight, Tensor(), epsilon, y, ctx);
  if (ctx.device.is_cuda()) {
    rms_norm_cuda(x, weight, epsilon, y, ctx);
  } else {
    rms_norm_cpu(x, weight, epsilon, y, ctx);
  }
}

}  // namespace sparsellm
