#include "models/weights/empty_weight.h"

#include "kernels/base/error.h"
#include "kernels/fill_random.h"

namespace sparsellm {

EmptyWeight::EmptyWeight(int64_t out, int64_t in, DType dtype) : out_(out), in_(in), dtype_(dtype) {
  require(out == 0 || in == 0, "a weight [{}, {}] is not empty", out, in);
}

void EmptyWeight::matmul(const Tensor&, Tensor y, const Epilogue& epilogue,
                         ExecContext& ctx) const {
  require(epilogue.bias.empty() && epilogue.activation.kind == Activation::Kind::none,
          "an empty weight with a bias or an activation");
  if (y.element_count() == 0) {
    return;
  }
  require(y.contiguous(), "an empty weight: strided rows");
  fill_random({.sparsity = 1.0}, Tensor(y.raw(), y.dtype(), {y.element_count()}, y.device()), ctx);
}

}  // namespace sparsellm
