#include "kernels/norm.h"

#include "kernels/checks.h"
#include "kernels/norm_device.h"

namespace sparsellm {
namespace {

void check(std::string_view op, const Tensor& x, const NormParams& params, const Tensor& y,
           const ExecContext& ctx) {
  check_tensor({op, "x"}, x, Elements::f32, {kAnySize, kAnySize}, ctx);
  check_tensor({op, "y"}, y, Elements::activation, {x.size(0), x.size(1)}, ctx);
  check_same_or_disjoint({op, "x and y"}, x, y);
  check_tensor({op, "weight"}, params.weight, Elements::floating, {x.size(1)}, ctx);
  if (!params.bias.empty()) {
    check_tensor({op, "bias"}, params.bias, Elements::floating, {x.size(1)}, ctx);
  }
  require(params.epsilon >= 0.0f, "{}: epsilon is {}", op, params.epsilon);
}

void check_delta(std::string_view op, const Tensor& delta, const Tensor& x, const Tensor& y,
                 const ExecContext& ctx) {
  check_tensor({op, "delta"}, delta, Elements::activation, {x.size(0), x.size(1)}, ctx);
  check_disjoint({op, "delta and x"}, delta, x);
  check_same_or_disjoint({op, "delta and y"}, delta, y);
  check_disjoint({op, "x and y"}, x, y);
}

void layer_norm(const Tensor& delta, const Tensor& x, const NormParams& params, const Tensor& y,
                ExecContext& ctx) {
  if (ctx.device.is_cuda()) {
    layer_norm_cuda(delta, x, params, y, ctx);
  } else {
    layer_norm_cpu(delta, x, params, y, ctx);
  }
}

void rms_norm(const Tensor& delta, const Tensor& x, const NormParams& params, const Tensor& y,
              ExecContext& ctx) {
  if (ctx.device.is_cuda()) {
    rms_norm_cuda(delta, x, params, y, ctx);
  } else {
    rms_norm_cpu(delta, x, params, y, ctx);
  }
}

}  // namespace

void layer_norm(const Tensor& x, const NormParams& params, Tensor y, ExecContext& ctx) {
  check("layer_norm", x, params, y, ctx);
  layer_norm(Tensor(), x, params, y, ctx);
}

void rms_norm(const Tensor& x, const NormParams& params, Tensor y, ExecContext& ctx) {
  check("rms_norm", x, params, y, ctx);
  require(params.bias.empty(), "rms_norm: there is no bias in RMSNorm");
  rms_norm(Tensor(), x, params, y, ctx);
}

void add_layer_norm(const Tensor& delta, Tensor x, const NormParams& params, Tensor y,
                    ExecContext& ctx) {
  check("add_layer_norm", x, params, y, ctx);
  check_delta("add_layer_norm", delta, x, y, ctx);
  layer_norm(delta, x, params, y, ctx);
}

void add_rms_norm(const Tensor& delta, Tensor x, const NormParams& params, Tensor y,
                  ExecContext& ctx) {
  check("add_rms_norm", x, params, y, ctx);
  require(params.bias.empty(), "add_rms_norm: there is no bias in RMSNorm");
  check_delta("add_rms_norm", delta, x, y, ctx);
  rms_norm(delta, x, params, y, ctx);
}

}  // namespace sparsellm
