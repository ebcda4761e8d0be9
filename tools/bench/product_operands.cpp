#include "tools/bench/product_operands.h"

#include <utility>

#include "kernels/base/cuda_context.h"
#include "kernels/fill_random.h"

namespace sparsellm {
namespace {

DType activation_dtype(const Tensor& weight) {
  return weight.device().is_cuda() ? weight.dtype() : DType::f32;
}

}  // namespace

OwnedTensor random_matrix(const RandomOperand& matrix, ExecContext& ctx) {
  OwnedTensor made =
      allocate_tensor(ctx.device, matrix.dtype, {matrix.rows, matrix.columns}, "a random matrix");
  const Tensor flat(made.view.raw(), matrix.dtype, {made.view.element_count()}, ctx.device);
  fill_random({.key = matrix.key,
               .spread = matrix.spread,
               .sparsity = matrix.sparsity,
               .pattern = matrix.pattern,
               .columns = matrix.columns},
              flat, ctx);
  if (ctx.cuda != nullptr) {
    ctx.cuda->synchronize();  // copies of it are not ordered with the context
  }
  return made;
}

OwnedTensor random_inputs(const Tensor& weight, int64_t tokens, uint64_t seed, ExecContext& ctx) {
  return random_matrix({.rows = tokens,
                        .columns = weight.size(1),
                        .dtype = activation_dtype(weight),
                        .key = random_key(seed, "x")},
                       ctx);
}

ProductOperands::ProductOperands(const Tensor& weight, int64_t max_tokens, uint64_t seed,
                                 ExecContext& ctx)
    : ProductOperands(weight, random_inputs(weight, max_tokens, seed, ctx), ctx) {}

ProductOperands::ProductOperands(const Tensor& weight, OwnedTensor x, ExecContext& ctx)
    : weight_(weight),
      x_(std::move(x)),
      y_(allocate_tensor(ctx.device, x_.view.dtype(), {max_tokens(), weight.size(0)}, "y")),
      other_y_(allocate_tensor(ctx.device, x_.view.dtype(), {max_tokens(), weight.size(0)},
                               "another y")),
      reference_(x_.view, weight, ctx) {}

}  // namespace sparsellm
