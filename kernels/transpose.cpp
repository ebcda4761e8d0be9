#include "kernels/transpose.h"

#include "kernels/checks.h"
#include "kernels/cpu/transpose.h"
#include "kernels/transpose_device.h"

namespace sparsellm {

void transpose(const Tensor& x, Tensor y, ExecContext& ctx) {
  check_tensor({"transpose", "x"}, x, Elements::floating, {kAnySize, kAnySize}, ctx);
  check_tensor({"transpose", "y"}, y, Elements::floating, {x.size(1), x.size(0)}, ctx);
  check_same_dtype({"transpose", "x and y"}, x, y);
  check_disjoint({"transpose", "x and y"}, x, y);
  if (ctx.device.is_cuda()) {
    transpose_cuda(x, y, ctx);
  } else {
    transpose(x, y, ctx.threads);
  }
}

}  // namespace sparsellm
