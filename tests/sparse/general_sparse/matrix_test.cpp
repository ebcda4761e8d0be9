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

TEST_F(GeneralMatrix, InTheLayoutsThatThereAreKernelsFor) {
  const CompressedRows m =
      random_matrix({.rows = 20, .columns = 300, .nonzeros = 500}, cpu_.threads);
  const auto load = [&](std::string_view layout) {
    return general_sparse::load_matrix(m, {}, cpu_.threads, layout);
  };
  const auto refused = [&](std::string_view layout, const char* reason) {
    return testing::throws_error([&] { load(layout); }, reason);
  };
  for (const char* layout :
       {"positions=u16 shared-rows=1 panel=512 window=256 sorted=no interleave=1 vector=4",
        "positions=u32 shared-rows=8 panel=0 window=8 sorted=yes interleave=1 vector=1"}) {
    testing::check_products(*load(layout), m, testing::kMatrixColumns, cpu_.exec);
  }
  EXPECT_TRUE(refused("rows", "layout: expected 'positions=', found 'rows'"));
  EXPECT_TRUE(
      refused("positions=u8 shared-rows=1 panel=512 window=256 sorted=no interleave=1 vector=1",
              "layout: there are no kernels of sparse matrices for positions other than u16"));
  EXPECT_TRUE(
      refused("positions=u16 shared-rows=1 panel=512 window=256 sorted=no interleave=32 vector=1",
              "no kernels of sparse matrices for interleave=32"));
  EXPECT_TRUE(
      refused("positions=u16 shared-rows=1 panel=256 window=256 sorted=no interleave=1 vector=1",
              "for several panels: panel=256, 300 columns"));
  EXPECT_TRUE(
      refused("positions=u16 shared-rows=2 panel=512 window=256 sorted=no interleave=1 vector=4",
              "for vector=4 with shared-rows=2"));
  EXPECT_TRUE(
      refused("positions=u16 shared-rows=1 panel=512 window=256 sorted=no interleave=1 vector=8",
              "for vector=8 with shared-rows=1"));
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
