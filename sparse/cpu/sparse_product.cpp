#include "sparse/cpu/sparse_product.h"

#include "kernels/base/workspace.h"
#include "kernels/checks.h"
#include "kernels/device/activate_values.h"

namespace sparsellm {

int64_t sparse_product_workspace_bytes(int64_t columns) {
  return Workspace::tensor_bytes(DType::f32, {columns, kProductTokens});
}

void check_product(std::string_view format, const WeightSizes& sizes, const Tensor& x,
                   const Tensor& y, const Epilogue& epilogue, const ExecContext& ctx) {
  check_tensor({format, "x"}, x, Elements::f32, {kAnySize, sizes.in}, ctx);
  check_tensor({format, "y"}, y, Elements::f32, {x.size(0), sizes.out}, ctx);
  check_disjoint({format, "x and y"}, x, y);
  if (!epilogue.bias.empty()) {
    check_tensor({format, "bias"}, epilogue.bias, Elements::floating, {sizes.out}, ctx);
  }
}

void check_expand(const EncodedWeight& e, Range rows, const Tensor& dense, const ExecContext& ctx) {
  require(rows.begin >= 0 && rows.count >= 0 && rows.count <= e.rows - rows.begin,
          "expand: {} rows from row {} of {}", rows.count, rows.begin, e.rows);
  check_tensor({"expand", "dense"}, dense, Elements::floating, {rows.count, e.columns}, ctx);
  require(dense.dtype() == e.dtype && dense.contiguous(),
          "expand: a {} tensor, or one with strided rows, for a weight of {}",
          name_of(dense.dtype()), name_of(e.dtype));
}

void gather_tokens(const Tensor& x, int64_t first_token, int64_t tokens, int64_t group,
                   const Tensor& gathered, ThreadPool& threads) {
  constexpr int64_t kColumnsPerRange = 256;
  auto* const out = gathered.data<float>();
  threads.parallel_for(x.size(1), kColumnsPerRange, [&](int64_t begin, int64_t end) {
    std::fill(out + begin * group, out + end * group, 0.0f);
    for (int64_t t = 0; t < tokens; ++t) {
      const float* const row = x.row<float>(first_token + t);
      for (int64_t column = begin; column < end; ++column) {
        out[column * group + t] = row[column];
      }
    }
  });
}

void store_block(const float* sums, int64_t group, const ProductBlock& block,
                 const Epilogue& epilogue, const Tensor& y) {
  for (int64_t t = 0; t < block.tokens; ++t) {
    float* const out = y.row<float>(block.first_token + t) + block.first_row;
    for (int64_t r = 0; r < block.rows; ++r) {
      out[r] = sums[r * group + t];
    }
    if (!epilogue.bias.empty()) {
      visit_float(epilogue.bias.dtype(), [&]<class B>(B) {
        const B* const bias = epilogue.bias.data<B>() + block.first_row;
        for (int64_t r = 0; r < block.rows; ++r) {
          out[r] += to_float(bias[r]);
        }
      });
    }
    activate_values(epilogue.activation, out, block.rows);
  }
}

}  // namespace sparsellm
