#include "kernels/gemm.h"

#include "kernels/base/error.h"
#include "kernels/checks.h"
#include "kernels/gemm_device.h"

namespace sparsellm {
namespace {

void check_activations(std::string_view op, const GemmSizes& sizes, const Tensor& x,
                       const Tensor& y, const Epilogue& epilogue, const ExecContext& ctx) {
  check_tensor({op, "x"}, x, Elements::activation, {kAnySize, sizes.in}, ctx);
  const bool f32_result = y.dtype() == DType::f32;
  check_tensor({op, "y"}, y, f32_result ? Elements::f32 : Elements::activation,
               {x.size(0), sizes.out}, ctx);
  if (!f32_result) {
    check_same_dtype({op, "x and y"}, x, y);
  }
  check_disjoint({op, "x and y"}, x, y);
  if (!epilogue.bias.empty()) {
    check_tensor({op, "bias"}, epilogue.bias, Elements::floating, {sizes.out}, ctx);
  }
}

}  // namespace

void gemm(const Tensor& x, const Tensor& w, const Epilogue& epilogue, Tensor y, ExecContext& ctx) {
  check_tensor({"gemm", "w"}, w, Elements::floating, {kAnySize, kAnySize}, ctx);
  check_activations("gemm", gemm_sizes(w, WeightOrder::out_in), x, y, epilogue, ctx);
  if (ctx.device.is_cuda()) {
    gemm_cuda(x, w, WeightOrder::out_in, epilogue, y, ctx);
  } else {
    gemm_cpu(x, w, epilogue, y, ctx);
  }
}

void gemm_transposed(const Tensor& x, const Tensor& wt, const Epilogue& epilogue, Tensor y,
                     ExecContext& ctx) {
  check_tensor({"gemm_transposed", "wt"}, wt, Elements::floating, {kAnySize, kAnySize}, ctx);
  check_activations("gemm_transposed", gemm_sizes(wt, WeightOrder::in_out), x, y, epilogue, ctx);
  if (ctx.device.is_cuda()) {
    gemm_cuda(x, wt, WeightOrder::in_out, epilogue, y, ctx);
  } else {
    gemm_transposed_cpu(x, wt, epilogue, y, ctx);
  }
}

int64_t gemm_workspace_bytes(Device device, int64_t in, int64_t tokens) {
  return device.is_cuda() ? 0 : gemm_workspace_bytes_cpu(in, tokens);
}

int64_t tune_gemm(const GemmTuning& what, TuneCache& cache, ExecContext& ctx) {
  require(!what.weights.empty(), "tune_gemm: there are no weights");
  const Tensor& first = what.weights.front();
  for (const Tensor& w : what.weights) {
    check_tensor({"tune_gemm", "w"}, w, Elements::floating, {kAnySize, kAnySize}, ctx);
    check_same_dtype({"tune_gemm", "two weights"}, first, w);
    if (w.size(0) != first.size(0) || w.size(1) != first.size(1) ||
        w.row_stride() != first.row_stride()) {
      fail("tune_gemm: weights {} and {} with row strides {} and {}", first.shape_string(),
           w.shape_string(), first.row_stride(), w.row_stride());
    }
  }
  if (!what.epilogue.bias.empty()) {
    check_tensor({"tune_gemm", "bias"}, what.epilogue.bias, Elements::floating,
                 {gemm_sizes(first, what.order).out}, ctx);
  }
  for (int64_t tokens : what.tokens) {
    constexpr int64_t kMaxTokens = 1 << 20;
    require(tokens >= 1 && tokens <= kMaxTokens, "tune_gemm: {} tokens; expected 1 to {}", tokens,
            kMaxTokens);
  }
  return ctx.device.is_cuda() ? tune_gemm_cuda(what, cache, ctx) : 0;
}

}  // namespace sparsellm
