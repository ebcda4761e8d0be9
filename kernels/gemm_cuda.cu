#include <algorithm>

#include "kernels/activation.h"
#include "kernels/gemm_device.h"
#include "kernels/gemm_invariance.cuh"
#include "kernels/gemm_plans.cuh"

namespace sparsellm {

void gemm_cuda(const Tensor& x, const Tensor& w, WeightOrder order, const Epilogue& epilogue,
               Tensor y, ExecContext& ctx) {
  const bool relu = epilogue.activation.kind == Activation::Kind::relu;
  const GemmOperands operands{
      .x = x, .w = w, .order = order, .bias = epilogue.bias, .y = y, .relu = relu};
  check_gemm_operands(operands);
  if (y.element_count() == 0) {
    return;
  }
  const GemmPlan plan = cuda_state(ctx).op_states.of<GemmPlans>().plan_for(operands, ctx);
  // What was tested is what is run.
  const int64_t most = ctx.sums == Sums::batch_invariant ? kInvariantTokens : x.size(0);
  for (int64_t begin = 0; begin < x.size(0); begin += most) {
    const int64_t count = std::min(most, x.size(0) - begin);
    check_cublas(enqueue_gemm(operands.tokens(begin, count), plan, ctx));
  }
  if (!relu && epilogue.activation.kind != Activation::Kind::none) {
    activate(epilogue.activation, y, ctx);
  }
}

}  // namespace sparsellm
