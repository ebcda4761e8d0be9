#include "tests/sparse/general_sparse/matrix_products.h"

#include <memory>
#include <vector>

#include "tests/sparse/matrices/compressed_product.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/wait_for_device.h"

namespace sparsellm::testing {
namespace {

using general_sparse::Matrix;
using general_sparse::Order;

template <class T>
std::vector<T> transposed(const std::vector<T>& values, int64_t rows, int64_t columns) {
  std::vector<T> result(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      result[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
    }
  }
  return result;
}

void check_product(const Matrix& a, const CompressedRows& m, int64_t n, Layout layout,
                   ExecContext& ctx) {
  constexpr double kTolerance = 8.0;  // epsilons of sum |a||b|
  Random random(static_cast<uint64_t>(n));
  const DType dtype = ctx.device.is_cuda() ? a.dtype() : DType::f32;
  const GuardedTensor x(dtype, {n, m.columns()}, layout, ctx.device);
  std::vector<double> numbers(static_cast<size_t>(n * m.columns()));
  for (double& number : numbers) {
    number = random.uniform(-1.0, 1.0);
  }
  set_values(x.view(), numbers);
  const GuardedTensor x_rows(dtype, {m.columns(), n}, layout, ctx.device);
  set_values(x_rows.view(), transposed(values_of(x.view()), n, m.columns()));

  Expected expected = compressed_product(x.view(), m, ctx.threads);
  const GuardedTensor by_columns(dtype, {n, m.rows()}, layout, ctx.device);
  a.multiply(x.view(), by_columns.view(), Order::columns, ctx);
  wait_for_device(ctx.device);
  EXPECT_TRUE(all_close(by_columns.view(), expected, kTolerance));
  EXPECT_TRUE(by_columns.guards_intact());

  expected = {transposed(expected.values, n, m.rows()),
              transposed(expected.magnitudes, n, m.rows())};
  const GuardedTensor by_rows(dtype, {m.rows(), n}, layout, ctx.device);
  a.multiply(x_rows.view(), by_rows.view(), Order::rows, ctx);
  wait_for_device(ctx.device);
  EXPECT_TRUE(all_close(by_rows.view(), expected, kTolerance));
  EXPECT_TRUE(by_rows.guards_intact());

  const GuardedTensor again(dtype, {m.rows(), n}, Layout::contiguous, ctx.device);
  const std::unique_ptr<Matrix> copy = a.copy();
  copy->multiply(x_rows.view(), again.view(), Order::rows, ctx);
  wait_for_device(ctx.device);
  EXPECT_TRUE(same_bits(again.view(), by_rows.view()));
}

}  // namespace

void check_products(const Matrix& a, const CompressedRows& m, std::span<const int64_t> columns,
                    ExecContext& ctx) {
  EXPECT_EQ(a.rows(), m.rows());
  EXPECT_EQ(a.columns(), m.columns());
  EXPECT_EQ(a.dtype(), m.dtype());
  for (const int64_t n : columns) {
    for (const Layout layout : {Layout::contiguous, Layout::strided}) {
      SCOPED_TRACE(fmt::format("N = {}{}", n, layout == Layout::strided ? ", strided" : ""));
      check_product(a, m, n, layout, ctx);
      if (::testing::Test::HasFailure()) {
        return;
      }
    }
  }
}

}  // namespace sparsellm::testing
