#include "kernels/add.h"

#include "kernels/add_device.h"
#include "kernels/checks.h"

namespace sparsellm {

void add(const Tensor& x, Tensor y, ExecContext& ctx, float scale) {
  check_tensor({"add", "y"}, y, Elements::f32, {kAnySize, kAnySize}, ctx);
  check_tensor({"add", "x"}, x, Elements::activation, {y.size(0), y.size(1)}, ctx);
  check_same_or_disjoint({"add", "x and y"}, x, y);
  if (ctx.device.is_cuda()) {
    add_cuda(x, y, ctx, scale);
  } else {
    add_cpu(x, y, ctx, scale);
  }
}

}  // namespace sparsellm
