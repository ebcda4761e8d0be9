#include "sparse/cpu/product_checks.h"

#include "kernels/base/error.h"
#include "kernels/checks.h"

namespace sparsellm {

void check_product(std::string_view format, const WeightSizes& sizes, const Tensor& x,
                   const Tensor& y, const Epilogue& epilogue, const ExecContext& ctx) {
  check_tensor({format, "x"}, x, Elements::f32, {kAnySize, sizes.in}, ctx);
  check_tensor({format, "y"}, y, Elements::f32, {x.size(0), sizes.out}, ctx);
  check_disjoint({format, "x and y"}, x, y);
  if (!epilogue.bias.empty()) {
    check_tensor({format, "bias"}, epilogue.bias, Elements::floating, {sizes.out}, ctx);
  }
}

void check_expand(const WeightSizes& sizes, DType dtype, Range rows, const Tensor& dense,
                  const ExecContext& ctx) {
  require(rows.begin >= 0 && rows.count >= 0 && rows.count <= sizes.out - rows.begin,
          "expand: {} rows from row {} of {}", rows.count, rows.begin, sizes.out);
  check_tensor({"expand", "dense"}, dense, Elements::floating, {rows.count, sizes.in}, ctx);
  require(dense.dtype() == dtype && dense.contiguous(),
          "expand: a {} tensor, or one with strided rows, for a weight of {}",
          name_of(dense.dtype()), name_of(dtype));
}

}  // namespace sparsellm
