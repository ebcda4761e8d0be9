// Products of sparse matrices on the CPU.

#include <gtest/gtest.h>

#include "sparse/matrices/random_matrix.h"
#include "tests/sparse/general_sparse/matrix_products.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/guarded_tensor.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using general_sparse::Matrix;
using general_sparse::Order;

class GeneralMatrix : public ::testing::Test {
 protected:
  testing::CpuContext cpu_{2};
};

TEST_F(GeneralMatrix, OfAllClasses) {
  for (const MatrixClass matrix_class : kMatrixClasses) {
    SCOPED_TRACE(name_of(matrix_class));
    const CompressedRows m = random_matrix(
        {.matrix_class = matrix_class, .rows = 144, .columns = 144, .nonzeros = 1500, .seed = 3},
        cpu_.threads);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const CompressedRows of_dtype = with_dtype(copy_of(m), dtype, cpu_.threads);
      testing::check_products(*general_sparse::load_matrix(of_dtype, {}, cpu_.threads), of_dtype,
                              testing::kMatrixColumns, cpu_.exec);
    }
  }
}

TEST_F(GeneralMatrix, RefusesOperandsThatDoNotFit) {
  const CompressedRows m = random_matrix({.rows = 20, .columns = 30, .nonzeros = 50}, cpu_.threads);
  const std::unique_ptr<Matrix> a = general_sparse::load_matrix(m, {}, cpu_.threads);
  const auto refused = [&](const Tensor& b, const Tensor& c, Order order, const char* reason) {
    return testing::throws_error([&] { a->multiply(b, c, order, cpu_.exec); }, reason);
  };
  const testing::GuardedTensor b(DType::f32, {30, 4});
  const testing::GuardedTensor c(DType::f32, {20, 4});
  const testing::GuardedTensor half(DType::f16, {30, 4});
  EXPECT_TRUE(refused(c.view(), c.view(), Order::rows,
                      "general_sparse: B is [20, 4], but the sparse matrix is 20 x 30"));
  EXPECT_TRUE(refused(b.view(), b.view(), Order::rows, "C is [30, 4], but the sparse matrix"));
  EXPECT_TRUE(refused(b.view(), c.view(), Order::columns, "B is [30, 4], but the sparse matrix"));
  EXPECT_TRUE(refused(b.view(), c.view().columns(0, 3), Order::rows, "but C is [20, 3]"));
  EXPECT_TRUE(refused(half.view(), c.view(), Order::rows,
                      "B is f16 [30, 4] on cpu, not a matrix of f32 on cpu"));
}

}  // namespace
}  // namespace sparsellm
