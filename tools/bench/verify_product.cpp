#include "tools/bench/verify_product.h"

#include <algorithm>
#include <cfloat>
#include <cstring>

#include "kernels/base/cuda_context.h"
#include "kernels/base/error.h"
#include "tools/bench/verify_product_device.h"

namespace sparsellm {
namespace {

void check_operand(const Tensor& x, const char* name, const ExecContext& ctx) {
  require(x.rank() == 2 && x.contiguous() && x.device() == ctx.device,
          "the reference of a product: {} is {} on {}", name, x.shape_string(),
          to_string(x.device()));
}

}  // namespace

Rounding rounding_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return {.relative = 0x1p-11f, .absolute = 0x1p-25f};
    case DType::bf16:
      return {.relative = 0x1p-8f, .absolute = FLT_MIN};
    default:
      // As the reference itself is rounded.
      return {.relative = 0x1p-23f, .absolute = FLT_MIN};
  }
}

ProductReference::ProductReference(const Tensor& x, const Tensor& w, ExecContext& ctx) {
  check_operand(x, "x", ctx);
  check_operand(w, "w", ctx);
  require(x.size(1) == w.size(1) && (x.dtype() == w.dtype() || !ctx.device.is_cuda()),
          "the reference of a product of {} {} and {} {}", name_of(x.dtype()), x.shape_string(),
          name_of(w.dtype()), w.shape_string());
  const int64_t tokens = x.size(0);
  const int64_t out = w.size(0);
  values_ = allocate_tensor(ctx.device, DType::f32, {tokens, out}, "the reference product");
  magnitudes_ = allocate_tensor(ctx.device, DType::f32, {tokens, out}, "the reference product");
  weight_sums_ = allocate_tensor(ctx.device, DType::f32, {out}, "the reference product");
  largest_inputs_ = allocate_tensor(ctx.device, DType::f32, {tokens}, "the reference product");
  if (ctx.device.is_cuda()) {
    worst_ = allocate_tensor(ctx.device, DType::f32, {1}, "the worst error");
    product_reference_cuda(x, w, sums(), ctx);
    ctx.cuda->synchronize();  // before anything may free x and w
  } else {
    product_reference_cpu(x, w, sums(), ctx);
  }
}

ProductSums ProductReference::sums() const {
  return {.values = values_.view,
          .magnitudes = magnitudes_.view,
          .weight_sums = weight_sums_.view,
          .largest_inputs = largest_inputs_.view};
}

double ProductReference::worst_error(const Tensor& y, ExecContext& ctx,
                                     double input_rounding) const {
  check_operand(y, "y", ctx);
  require(y.size(0) <= values_.view.size(0) && y.size(1) == values_.view.size(1),
          "the reference of a product is {}, y is {}", values_.view.shape_string(),
          y.shape_string());
  return ctx.device.is_cuda() ? product_error_cuda(y, sums(), input_rounding, worst_.view, ctx)
                              : product_error_cpu(y, sums(), input_rounding, ctx);
}

void poison(const Tensor& y, ExecContext& ctx) {
  require(y.contiguous(), "NaN for a tensor {} with gaps", y.shape_string());
  if (ctx.device.is_cuda()) {
    poison_cuda(y, ctx);
  } else {
    std::memset(y.raw(), kPoison, static_cast<size_t>(y.bytes()));
  }
}

double verify_product(const std::function<void(int64_t)>& multiply, int64_t copies, const Tensor& y,
                      const ProductReference& reference, ExecContext& ctx, double input_rounding) {
  double worst = 0.0;
  for (int64_t copy = 0; copy < copies; ++copy) {
    poison(y, ctx);
    multiply(copy);
    worst = std::max(worst, reference.worst_error(y, ctx, input_rounding));
  }
  return worst;
}

}  // namespace sparsellm
