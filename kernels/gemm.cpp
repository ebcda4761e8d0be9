#include "kernels/gemm.h"

#include "kernels/checks.h"
#include "kernels/gemm_device.h"

namespace sparsellm {

void gemm(const Tensor& x, const Tensor& w, const Epilogue& epilogue, Tensor y, ExecContext& ctx) {
  check_tensor({"gemm", "w"}, w, Elements::floating, {kAnySize, kAnySize}, ctx);
  check_tensor({"gemm", "x"}, x, Elements::activation, {kAnySize, w.size(1)}, ctx);
  check_tensor({"gemm", "y"}, y, Elements::activation, {x.size(0), w.size(0)}, ctx);
  check_same_dtype({"gemm", "x and y"}, x, y);
  check_disjoint({"gemm", "x and y"}, x, y);
  if (!epilogue.bias.empty()) {
    check_tensor({"gemm", "bias"}, epilogue.bias, Elements::floating, {w.size(0)}, ctx);
  }
  if (ctx.device.is_cuda()) {
    gemm_cuda(x, w, epilogue, y, ctx);
  } else {
    gemm_cpu(x, w, epilogue, y, ctx);
  }
}

}  // namespace sparsellm
