#include "sparse/cuda_product_checks.h"

#include <string_view>

#include "kernels/base/error.h"
#include "kernels/checks.h"

namespace sparsellm {

void check_cuda_product(const WeightMatrix& weight, const Tensor& x, const Tensor& y,
                        const Epilogue& epilogue, const ExecContext& ctx) {
  const std::string_view format = weight.format();
  const DType dtype = weight.dtype();
  check_tensor({format, "x"}, x, Elements::activation, {kAnySize, weight.in()}, ctx);
  check_tensor({format, "y"}, y, y.dtype() == DType::f32 ? Elements::f32 : Elements::activation,
               {x.size(0), weight.out()}, ctx);
  require(x.dtype() == dtype && (y.dtype() == dtype || y.dtype() == DType::f32),
          "{}: x is {} and y {} for a weight of {}", format, name_of(x.dtype()), name_of(y.dtype()),
          name_of(dtype));
  check_disjoint({format, "x and y"}, x, y);
  if (!epilogue.bias.empty()) {
    check_tensor({format, "bias"}, epilogue.bias, Elements::activation, {weight.out()}, ctx);
    require(epilogue.bias.dtype() == dtype && y.dtype() == dtype,
            "{}: the bias is {} and y {} for a weight of {}", format,
            name_of(epilogue.bias.dtype()), name_of(y.dtype()), name_of(dtype));
  }
  require(weight.in() > 0, "{}: a weight without columns on CUDA", format);
}

void check_cuda_expansion(const WeightMatrix& weight, Range rows, const Tensor& dense,
                          const ExecContext& ctx) {
  require(rows.begin >= 0 && rows.count >= 0 && rows.count <= weight.out() - rows.begin,
          "expand: {} rows from row {} of {}", rows.count, rows.begin, weight.out());
  check_tensor({"expand", "dense"}, dense, Elements::activation, {rows.count, weight.in()}, ctx);
  require(dense.dtype() == weight.dtype() && dense.contiguous(),
          "expand: a {} tensor, or one with strided rows, for a weight of {}",
          name_of(dense.dtype()), name_of(weight.dtype()));
}

}  // namespace sparsellm
